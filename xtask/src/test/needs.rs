//! Programs of others that tests need, and how to get them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{self, Outcome};

/// One need. A new one is one more entry.
pub struct Need {
    /// What tests call it.
    pub name: &'static str,
    /// Programs that must be on the path.
    programs: &'static [&'static str],
    /// How they come.
    source: Source,
}

enum Source {
    /// These Debian packages bring them.
    Debian(&'static [&'static str]),
    /// Nothing here installs them, and no run fails without: how to get them.
    ByHand(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        name: "etcd",
        programs: &["etcd", "etcdctl"],
        source: Source::Debian(&["etcd-server", "etcd-client"]),
    },
    Need {
        name: "etcd-3.6",
        programs: &["etcd-3.6"],
        source: Source::ByHand("put an etcd 3.6 on the path under that name"),
    },
    Need {
        name: "go",
        programs: &["go"],
        source: Source::ByHand(
            "install Go 1.24 or later, which builds h2spec and the stock callers",
        ),
    },
    Need {
        name: "python",
        programs: &["python3", "pip3"],
        source: Source::Debian(&["python3", "python3-pip"]),
    },
    Need {
        name: "ip",
        programs: &["ip"],
        source: Source::Debian(&["iproute2"]),
    },
    Need {
        name: "tmux",
        programs: &["tmux"],
        source: Source::Debian(&["tmux"]),
    },
    Need {
        name: "nginx",
        programs: &["nginx"],
        source: Source::Debian(&["nginx"]),
    },
    Need {
        name: "haproxy",
        programs: &["haproxy"],
        source: Source::Debian(&["haproxy"]),
    },
    Need {
        name: "chromium",
        programs: &["chromium"],
        source: Source::Debian(&["chromium"]),
    },
];

/// While this file exists and refuses, Debian's packages start no service when they are installed.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";

/// Somebody else may be installing, and a download may fail.
const PATIENT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"];

/// Installs what is missing where this process may, and returns what is missing still.
pub fn provide() -> Vec<&'static Need> {
    let wanted: Vec<&Need> = missing();
    let packages: Vec<&str> = wanted
        .iter()
        .flat_map(|need| need.packages())
        .copied()
        .collect();
    if packages.is_empty() || !may_install() {
        return wanted;
    }
    if let Err(failure) = install(&packages) {
        eprintln!("{failure}");
    }
    missing()
}

impl Need {
    /// What is missing, and how to get it.
    pub fn advice(&self) -> String {
        let programs = self.programs.join("` or `");
        match self.source {
            Source::Debian(packages) => {
                let packages = packages.join(" ");
                format!("`{programs}` is missing: on Debian, `apt-get install {packages}`")
            }
            Source::ByHand(how) => format!("`{programs}` is missing: {how}"),
        }
    }

    /// Whether nothing fails without it, even where everything must be proved.
    pub const fn is_extra(&self) -> bool {
        matches!(self.source, Source::ByHand(_))
    }

    const fn packages(&self) -> &'static [&'static str] {
        match self.source {
            Source::Debian(packages) => packages,
            Source::ByHand(_) => &[],
        }
    }

    fn is_there(&self) -> bool {
        self.programs.iter().all(|program| on_path(program))
    }
}

fn missing() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !need.is_there()).collect()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether this is root on a system with apt-get.
fn may_install() -> bool {
    let id = Command::new("id").arg("-u").stdin(Stdio::null()).output();
    on_path("apt-get") && id.is_ok_and(|output| output.stdout == b"0\n")
}

fn install(packages: &[&str]) -> Outcome {
    let _no_service = NoService::begin();
    let install: Vec<&str> = ["install", "-y", "--no-install-recommends"]
        .iter()
        .chain(packages)
        .copied()
        .collect();
    if apt_get(&install).is_ok() {
        return Ok(());
    }
    // A mirror that is being renewed is whole a moment later.
    apt_get(&["update"]).or_else(|_| apt_get(&["update"]))?;
    apt_get(&install)
}

fn apt_get(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    command
        .args(PATIENT)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    shell::run(&mut command)
}

/// Keeps packages from starting services for as long as it lives.
struct NoService {
    ours: bool,
}

impl NoService {
    /// A policy that is there already is left as it is.
    fn begin() -> Self {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(START_POLICY);
        let written = file.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n"));
        Self {
            ours: written.is_ok(),
        }
    }
}

impl Drop for NoService {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(Path::new(START_POLICY))
        {
            eprintln!("{START_POLICY} stays behind ({error}): remove it by hand");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_named_with_its_package() {
        let need = Need {
            name: "a",
            programs: &["no-such-program-1"],
            source: Source::Debian(&["p-1"]),
        };
        assert!(!need.is_there() && !need.is_extra());
        let expected = "`no-such-program-1` is missing: on Debian, `apt-get install p-1`";
        assert_eq!(need.advice(), expected);
    }

    #[test]
    fn program_on_the_path_is_there() {
        let need = Need {
            name: "a",
            programs: &["sh"],
            source: Source::Debian(&[]),
        };
        assert!(need.is_there());
    }
}
