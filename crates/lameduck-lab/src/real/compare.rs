//! The same run on other libraries: the same load, schedule, rolls, kill and ordeals, in a fleet of
//! their own, judged by the same judge.

use super::error::LabError;
use super::flavour::Flavour;
use super::options::{Options, Registry};
use super::progress::{Onlooker, Progress};
use super::report::{Compare, Report};
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
    let keep = options.keep.as_ref();
    let options = Options {
        flavour,
        keep: keep.map(|path| path.join(directory(flavour))),
        ..options.clone()
    };
    let mut outcome = run(options, &mut Named { flavour, onlooker }).await?;
    if flavour != Flavour::Lameduck {
        forget_picks(&mut outcome.report);
    }
    Ok(outcome)
}

/// tonic tells nobody where it places a call.
pub(super) fn forget_picks(report: &mut Report) {
    for drain in &mut report.drains {
        drain.window_pick_ms = None;
    }
}

const fn directory(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Lameduck => "lameduck",
        Flavour::Tonic => "tonic",
        Flavour::TonicHardened => "tonic_hardened",
    }
}

/// Says which column is being made.
struct Named<'a> {
    flavour: Flavour,
    onlooker: &'a mut dyn Onlooker,
}

impl Onlooker for Named<'_> {
    fn see(&mut self, progress: &Progress) {
        let fleets = Flavour::ALL;
        let place = fleets.iter().position(|flavour| *flavour == self.flavour);
        let (place, all) = (place.map_or(0, |place| place + 1), fleets.len());
        let name = self.flavour.as_str();
        let doing = format!("fleet {place} of {all}, {name}: {}", progress.doing);
        self.onlooker.see(&Progress {
            doing,
            ..progress.clone()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::sabotage::Sabotage;
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
}
