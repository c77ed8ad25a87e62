//! What the command tells of itself.

use std::process::{Command, Output};

fn lameduck(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lameduck"));
    command.args(arguments).output().expect("it was built")
}

fn said(arguments: &[&str]) -> String {
    let output = lameduck(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// Whether a shell that is there takes `script` without a complaint.
fn is_taken(shell: &str, script: &str) -> bool {
    match Command::new(shell).args(["-c", script]).output() {
        Ok(output) => output.status.success() && output.stderr.is_empty(),
        Err(_) => true,
    }
}

#[test]
fn completions_name_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&["completions", shell]);
        for word in ["registry", "compare", "sabotage", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let bash = said(&["completions", "bash"]);
    assert!(is_taken("bash", &bash));
    let ask = "COMP_WORDS=(lameduck lab --comp); COMP_CWORD=2; \
               _lameduck lameduck --comp lab; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", &format!("{bash}\n{ask}")])
        .output();
    let output = output.expect("there is a bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "--compare");
}

#[test]
fn an_unknown_shell_is_told() {
    let output = lameduck(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("bash"));
}

#[test]
fn the_manual_has_its_pages() {
    let page = said(&["man"]);
    assert!(
        page.contains(".TH lameduck 1") && page.contains("lameduck\\-registry(1)"),
        "{page}"
    );
    assert!(!page.contains("lab\\-child"), "what is hidden is not told");
    let directory = std::env::temp_dir().join(format!("lameduck-man-{}", std::process::id()));
    let text = directory.to_string_lossy().into_owned();
    said(&["man", "--dir", &text]);
    let lab = std::fs::read_to_string(directory.join("lameduck-lab.1")).expect("it was written");
    assert!(
        lab.contains("\\-\\-report") && lab.contains("\\-\\-ordeals"),
        "{lab}"
    );
    assert!(lab.contains("Exit codes: 0 ") && lab.contains("21 the run proves nothing"));
    assert!(said(&["lab", "sim", "--help"]).contains("Exit codes: 0 "));
    std::fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let status = Command::new("bash")
        .args(["-c", "set -o pipefail; \"$0\" man | true"])
        .arg(env!("CARGO_BIN_EXE_lameduck"))
        .status()
        .expect("there is a bash");
    assert!(status.success() || status.code() == Some(141), "{status}");
}
