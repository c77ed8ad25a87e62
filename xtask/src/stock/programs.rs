//! The callers' programs, and what they need of others: kept below the user's cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Failure, Outcome};

/// The sources, below the workspace's root.
const SOURCES: &str = "xtask/stock";
/// The directories of the user's cache that are filled.
const GO: &str = "stock-go";
const PYTHON: &str = "stock-python";
/// What is built, and what of it one depends on.
const GO_FILES: [&str; 3] = ["go.mod", "go.sum", "main.go"];
const PYTHON_FILES: [&str; 1] = ["requirements.txt"];
/// go-zero brings a client of Kubernetes unless this is said.
const TAGS: &str = "no_k8s";

pub struct Programs {
    go: PathBuf,
    /// Where the modules of Python are.
    modules: PathBuf,
    python: PathBuf,
}

impl Programs {
    /// Builds and installs what is not there yet, or of other sources.
    pub fn provide() -> Result<Self, Failure> {
        let sources = shell::root().join(SOURCES);
        let go = shell::cache(GO)?;
        kept(&go, &sources, &GO_FILES, &[], build_go)?;
        let modules = shell::cache(PYTHON)?;
        // Modules with native code fit one Python alone.
        let version = output(Command::new("python3").arg("-VV"))?;
        kept(&modules, &sources, &PYTHON_FILES, &version, install_python)?;
        Ok(Self {
            go: go.join("stock"),
            modules,
            python: sources.join("grpcio_caller.py"),
        })
    }

    pub fn go(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.go);
        command.args(words);
        command
    }

    pub fn python(&self, words: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(&self.python).args(words);
        // Nothing of Python's is written into the tree.
        command.env("PYTHONPATH", &self.modules);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Fills `directory` from copies of these files of `sources`, where it was not filled from the same, with the
/// same `version` of the tool, before.
fn kept(
    directory: &Path,
    sources: &Path,
    files: &[&str],
    version: &[u8],
    fill: fn(&Path) -> Outcome,
) -> Outcome {
    let mut made_of = version.to_vec();
    for file in files {
        made_of.extend(fs::read(sources.join(file))?);
    }
    // Written last: it is there only where the rest is whole.
    let mark = directory.join("made-of");
    if fs::read(&mark).is_ok_and(|before| before == made_of) {
        return Ok(());
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(directory)?,
    }
    for file in files {
        fs::copy(sources.join(file), directory.join(file))?;
    }
    fill(directory)?;
    fs::write(mark, made_of)?;
    Ok(())
}

fn build_go(directory: &Path) -> Outcome {
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-trimpath", "-tags", TAGS]);
    build.args(["-ldflags", "-s -w", "-o", "stock", "."]);
    // A workspace of somebody's own above must not say what is built.
    build.env("GOWORK", "off").env("GOFLAGS", "");
    shell::run(build.current_dir(directory))
}

fn install_python(directory: &Path) -> Outcome {
    let mut install = Command::new("python3");
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]);
    install.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
    install.args(["--target", ".", "-r", "requirements.txt"]);
    shell::run(install.current_dir(directory))
}

fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.output();
    let output = output.map_err(|error| {
        let shown = shell::shown(command);
        Failure(format!("`{shown}` could not be started: {error}"))
    })?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_not_made_again() {
        let at = std::env::temp_dir().join(format!("xtask-kept-{}", std::process::id()));
        let (sources, directory) = (at.join("sources"), at.join("kept"));
        fs::create_dir_all(&sources).unwrap();
        fs::write(sources.join("a"), "1").unwrap();
        let kept = |version: &[u8], fill| kept(&directory, &sources, &["a"], version, fill);
        let copy: fn(&Path) -> Outcome = |directory| {
            fs::copy(directory.join("a"), directory.join("made"))?;
            Ok(())
        };
        let refuse: fn(&Path) -> Outcome = |_| Err(Failure("made again".to_owned()));
        kept(b"", copy).unwrap();
        kept(b"", refuse).unwrap();
        assert_eq!(fs::read(directory.join("made")).unwrap(), b"1");
        // Another version, other sources, and after a failure.
        assert!(kept(b"2", refuse).is_err());
        assert!(kept(b"", refuse).is_err());
        fs::write(sources.join("a"), "2").unwrap();
        kept(b"", copy).unwrap();
        assert_eq!(fs::read(directory.join("made")).unwrap(), b"2");
        fs::remove_dir_all(at).unwrap();
    }
}
