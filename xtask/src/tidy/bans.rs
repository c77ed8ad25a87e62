//! Words that must not appear in code, here or there.

use super::Finding;
use super::source::Source;

/// One ban. A new rule is one more entry; its two examples are its test.
struct Ban {
    /// Any of these, as whole words of code.
    words: &'static [&'static str],
    /// Path prefixes that it holds for; empty = everywhere.
    within: &'static [&'static str],
    /// Path prefixes that are exempt.
    except: &'static [&'static str],
    /// Whether tests are exempt.
    tests_may: bool,
    wrong: &'static str,
    mend: &'static str,
    /// Code that breaks the rule, once for each word.
    #[cfg(test)]
    fires: &'static str,
    /// Code that looks like it and does not.
    #[cfg(test)]
    silent: &'static str,
}

const CORE: &[&str] = &["crates/lameduck-core/src/"];
/// Reads its switch from the environment, in builds for mutants alone.
const MUTANT: &str = "crates/lameduck-core/src/mutant.rs";
/// What no safe crate offers.
const SOCKET: &str = "crates/lameduck-socket/src/lib.rs";
const TESTS_ON_SOCKETS: &[&str] = &["crates/lameduck/tests/", "crates/lameduck-registry/tests/"];
const LIBRARIES: &[&str] = &["crates/lameduck/src/", "crates/lameduck-registry/src/"];

const BANS: &[Ban] = &[
    Ban {
        words: &["unsafe"],
        within: &[],
        except: &[SOCKET],
        tests_may: false,
        wrong: "unsafe code",
        mend: "use rustix, socket2 or another safe wrapper",
        #[cfg(test)]
        fires: "unsafe { a() }",
        #[cfg(test)]
        silent: "#![forbid(unsafe_code)] // no unsafe",
    },
    Ban {
        words: &["#[allow(", "#![allow("],
        within: &[],
        except: &[],
        tests_may: false,
        wrong: "a lint is silenced for ever",
        mend: "use `#[expect(lint, reason = \"...\")]`",
        #[cfg(test)]
        fires: "#[allow(dead_code)] mod a; #![allow(dead_code)]",
        #[cfg(test)]
        silent: "#[expect(dead_code, reason = \"...\")] fn allow(a: u8) {}",
    },
    Ban {
        words: &["#[ignore", "#[should_panic"],
        within: &[],
        except: &[],
        tests_may: false,
        wrong: "a test that proves nothing",
        mend: "make it run and check the value, or delete it",
        #[cfg(test)]
        fires: "#[ignore = \"slow\"] fn a() {} #[should_panic] fn b() {}",
        #[cfg(test)]
        silent: "// #[ignore]\nfn ignore() {}",
    },
    Ban {
        words: &["todo!", "unimplemented!"],
        within: &[],
        except: &[],
        tests_may: false,
        wrong: "unfinished code",
        mend: "finish it or leave it out",
        #[cfg(test)]
        fires: "todo!(); unimplemented!()",
        #[cfg(test)]
        silent: "let todo = !a; \"todo!\"",
    },
    Ban {
        words: &["std::", "extern crate std"],
        within: CORE,
        except: &[MUTANT],
        tests_may: true,
        wrong: "the core uses std",
        mend: "use core or alloc; what needs more belongs at the edge",
        #[cfg(test)]
        fires: "use std::fmt; extern crate std;",
        #[cfg(test)]
        silent: "use core::fmt; use my_std::fmt; #[cfg(test)]\nmod tests { use std::fmt; }",
    },
    Ban {
        words: &["Instant", "SystemTime"],
        within: CORE,
        except: &[],
        tests_may: true,
        wrong: "the core reads a clock",
        mend: "take `now: Timestamp` as an argument",
        #[cfg(test)]
        fires: "Instant::now(); SystemTime::now()",
        #[cfg(test)]
        silent: "Instantly::now(); Timestamp::ZERO",
    },
    Ban {
        words: &["Mutex", "RwLock", "OnceLock", "LazyLock"],
        within: CORE,
        except: &[MUTANT],
        tests_may: true,
        wrong: "the core takes a lock",
        mend: "let the owner pass `&mut`",
        #[cfg(test)]
        fires: "Mutex::new(()); RwLock::new(()); OnceLock::new(); LazyLock::new(a)",
        #[cfg(test)]
        silent: "MutexFree::new(())",
    },
    Ban {
        words: &["HashMap", "HashSet"],
        within: CORE,
        except: &[],
        tests_may: true,
        wrong: "an order that differs from run to run",
        mend: "use BTreeMap or BTreeSet",
        #[cfg(test)]
        fires: "HashMap::new(); HashSet::new()",
        #[cfg(test)]
        silent: "BTreeMap::new() // not a HashMap",
    },
    Ban {
        words: &["async", ".await"],
        within: CORE,
        except: &[],
        tests_may: true,
        wrong: "the core waits",
        mend: "make it an input, an output or a deadline of a machine",
        #[cfg(test)]
        fires: "async fn a() { b().await }",
        #[cfg(test)]
        silent: "fn is_async() {}",
    },
    Ban {
        words: &["sync::atomic"],
        within: LIBRARIES,
        except: &["crates/lameduck/src/cell/", "crates/lameduck/src/cell.rs"],
        tests_may: true,
        wrong: "an atomic outside `lameduck::cell`",
        mend: "give `cell` a type that says what it counts",
        #[cfg(test)]
        fires: "use std::sync::atomic::AtomicU64;",
        #[cfg(test)]
        silent: "use crate::cell::Gate;",
    },
    Ban {
        words: &["tracing::"],
        within: LIBRARIES,
        except: &[
            "crates/lameduck/src/observe/",
            "crates/lameduck/src/observe.rs",
        ],
        tests_may: true,
        wrong: "a log line outside `lameduck::observe`",
        mend: "emit an `Event`; `observe` derives the line from it",
        #[cfg(test)]
        fires: "tracing::info!(\"a\");",
        #[cfg(test)]
        silent: "emit(Event::Entered);",
    },
    Ban {
        words: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        within: LIBRARIES,
        except: &[
            "crates/lameduck/src/provider/report.rs",
            // Tells the reader of a test run which test was left out.
            "crates/lameduck-registry/src/etcd/process.rs",
        ],
        tests_may: true,
        wrong: "a library prints",
        mend: "return it, or emit an `Event`",
        #[cfg(test)]
        fires: "println!(); eprintln!(); print!(); eprint!(); dbg!()",
        #[cfg(test)]
        silent: "write!(f, \"a\"); my_println!();",
    },
    Ban {
        words: &["elapsed() <"],
        within: TESTS_ON_SOCKETS,
        except: &[],
        tests_may: false,
        wrong: "a test that a machine which stands still fails",
        mend: "await the event itself, or let time stand (`standing` of `lameduck`'s tests)",
        #[cfg(test)]
        fires: "assert!(begun.elapsed() < SOON);",
        #[cfg(test)]
        silent: "assert!(begun.elapsed() >= FLOOR); // not elapsed() <",
    },
];

pub fn check(source: &Source) -> Vec<Finding> {
    BANS.iter()
        .filter(|ban| ban.holds_for(&source.path))
        .flat_map(|ban| ban.check(source))
        .collect()
}

impl Ban {
    fn holds_for(&self, path: &str) -> bool {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
        (self.within.is_empty() || begins(self.within)) && !begins(self.except)
    }

    fn check(&self, source: &Source) -> Vec<Finding> {
        let mut findings = Vec::new();
        for word in self.words {
            for at in source.find(word) {
                if !(self.tests_may && source.is_test(at)) {
                    let wrong = format!("{} (`{word}`)", self.wrong);
                    let line = source.line_of(at);
                    findings.push(Finding::new(&source.path, line, wrong, self.mend));
                }
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(ban: &Ban) -> String {
        format!("{}a.rs", ban.within.first().unwrap_or(&"xtask/src/"))
    }

    #[test]
    fn every_ban_fires_for_each_of_its_words() {
        for ban in BANS {
            let found = ban.check(&Source::new(&home(ban), ban.fires));
            assert_eq!(found.len(), ban.words.len(), "{:?}: {found:?}", ban.words);
        }
    }

    #[test]
    fn no_ban_fires_for_what_only_looks_alike() {
        for ban in BANS {
            assert_eq!(ban.check(&Source::new(&home(ban), ban.silent)), Vec::new());
        }
    }

    #[test]
    fn bans_of_the_core_hold_nowhere_else() {
        for ban in BANS.iter().filter(|ban| ban.within == CORE) {
            let elsewhere = Source::new("crates/lameduck/src/a.rs", ban.fires);
            assert!(ban.holds_for("crates/lameduck-core/src/a.rs"));
            assert!(!ban.holds_for(&elsewhere.path));
        }
    }

    #[test]
    fn exempt_files_are_silent() {
        for ban in BANS {
            for exempt in ban.except {
                assert!(!ban.holds_for(exempt));
            }
        }
    }

    #[test]
    fn finding_names_its_line_and_says_what_to_do() {
        let found = check(&Source::new(
            "crates/lameduck-core/src/a.rs",
            "\nuse std::fmt;\n",
        ));
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = "crates/lameduck-core/src/a.rs:2: the core uses std (`std::`): \
                        use core or alloc; what needs more belongs at the edge";
        assert_eq!(shown, [expected]);
    }
}
