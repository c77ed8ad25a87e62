//! The same run on other libraries: the same load, schedule, rolls, kill and ordeals, in a fleet of
//! their own, judged by the same judge.

use super::error::LabError;
use super::flavour::Flavour;
use super::limits::COLUMN_REPEATED_MAX;
use super::options::{Options, Registry};
use super::progress::{Onlooker, Progress};
use super::report::{Compare, Ending, Report};
use super::run::{Outcome, run};

/// All columns of a comparison.
#[derive(Debug)]
pub struct Compared {
    /// Lameduck's own run, with the others' reports in it.
    pub outcome: Outcome,
    /// The others' runs, with their stories.
    pub others: Vec<(Flavour, Outcome)>,
}

/// Makes one run on each of them, lameduck's first.
///
/// # Errors
///
/// Where one of the runs has no outcome, or the options make no sense here.
pub async fn compare(options: Options, onlooker: &mut dyn Onlooker) -> Result<Compared, LabError> {
    let options = checked(options)?;
    let mut outcome = one(&options, Flavour::Lameduck, onlooker).await?;
    let tonic = one(&options, Flavour::Tonic, onlooker).await?;
    let hardened = one(&options, Flavour::TonicHardened, onlooker).await?;
    outcome.report.compare = Some(Box::new(Compare {
        tonic: tonic.report.clone(),
        tonic_hardened: hardened.report.clone(),
    }));
    let others = vec![(Flavour::Tonic, tonic), (Flavour::TonicHardened, hardened)];
    Ok(Compared { outcome, others })
}

fn checked(options: Options) -> Result<Options, LabError> {
    let refuse = |what: &str| Err(LabError::Usage(what.to_owned()));
    match &options {
        Options {
            sabotage: Some(_), ..
        } => refuse("--compare: nothing is compared with a broken lameduck; leave out --sabotage"),
        Options {
            registry: Registry::None,
            ..
        } => refuse("--compare: the hardened column follows a registry; leave out --registry none"),
        _ => Ok(Options {
            ordeals: true,
            ..options
        }),
    }
}

async fn one(
    options: &Options,
    flavour: Flavour,
    onlooker: &mut dyn Onlooker,
) -> Result<Outcome, LabError> {
    let mut repeated = Vec::new();
    loop {
        let before = repeated.len();
        let keep = options.keep.as_ref();
        let options = Options {
            flavour,
            keep: keep.map(|path| path.join(directory(flavour, before))),
            ..options.clone()
        };
        let mut named = Named {
            flavour,
            before,
            onlooker,
        };
        let mut outcome = run(options, &mut named).await?;
        if is_repeated(&outcome.report, &mut repeated) {
            continue;
        }
        outcome.report.repeated = repeated;
        if flavour != Flavour::Lameduck {
            forget_picks(&mut outcome.report);
        }
        return Ok(outcome);
    }
}

/// Whether a column is made once more; then it is written down why.
fn is_repeated(report: &Report, repeated: &mut Vec<String>) -> bool {
    let again = report.ending() == Ending::Invalid && repeated.len() < COLUMN_REPEATED_MAX;
    if again {
        repeated.push(report.invalid.join("; "));
    }
    again
}

/// tonic tells nobody where it places a call.
pub(super) fn forget_picks(report: &mut Report) {
    for drain in &mut report.drains {
        drain.window_pick_ms = None;
    }
}

/// Where the files of a column's run are kept, after so many that proved nothing.
fn directory(flavour: Flavour, before: usize) -> String {
    let name = match flavour {
        Flavour::Lameduck => "lameduck",
        Flavour::Tonic => "tonic",
        Flavour::TonicHardened => "tonic_hardened",
    };
    match before {
        0 => name.to_owned(),
        before => format!("{name}-{}", before + 1),
    }
}

/// Says which column is being made.
struct Named<'a> {
    flavour: Flavour,
    /// Runs of it before this one, which proved nothing.
    before: usize,
    onlooker: &'a mut dyn Onlooker,
}

impl Onlooker for Named<'_> {
    fn see(&mut self, progress: &Progress) {
        let fleets = Flavour::ALL;
        let place = fleets.iter().position(|flavour| *flavour == self.flavour);
        let (place, all) = (place.map_or(0, |place| place + 1), fleets.len());
        let name = self.flavour.as_str();
        let again = match self.before {
            0 => String::new(),
            before => format!(", run {}", before + 1),
        };
        let doing = format!("fleet {place} of {all}, {name}{again}: {}", progress.doing);
        self.onlooker.see(&Progress {
            doing,
            ..progress.clone()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::super::record::Record;
    use super::super::report::Jitter;
    use super::super::sabotage::Sabotage;
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn options_without_sense_are_told() {
        let check = |options: Options, part: &str| {
            let error = checked(options).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let registry = Registry::None;
        let sabotage = Some(Sabotage::NoAnnounce);
        let usual = Options::default;
        check(
            Options {
                registry,
                ..usual()
            },
            "--registry",
        );
        check(
            Options {
                sabotage,
                ..usual()
            },
            "--sabotage",
        );
        assert!(checked(usual()).unwrap().ordeals);
    }

    #[test]
    fn a_column_that_proves_nothing_is_repeated_a_few_times() {
        let mut run = Synthetic::clean(1);
        let (ledger, options) = (run.ledger(), Options::default());
        let report = |run: &Synthetic, ledger: &Ledger| {
            let (problems, jitter) = (Vec::new(), Jitter::default());
            let (plan, history) = (&run.plan, &run.history);
            Report::new(&options, ledger, plan, history, problems, jitter)
        };
        let mut repeated = Vec::new();
        assert!(!is_repeated(&report(&run, &ledger), &mut repeated));
        run.remove(|record| matches!(record, Record::Answered { .. }));
        let lost = report(&run, &run.ledger());
        assert!(!is_repeated(&lost, &mut repeated), "a loss is a loss");
        run.remove(|record| matches!(record, Record::Started { .. }));
        let invalid = report(&run, &run.ledger());
        for _ in 0..COLUMN_REPEATED_MAX {
            assert!(is_repeated(&invalid, &mut repeated));
        }
        assert!(!is_repeated(&invalid, &mut repeated));
        assert_eq!(repeated.len(), COLUMN_REPEATED_MAX);
        assert!(repeated[0].contains("no call in flight"), "{repeated:?}");
    }
}
