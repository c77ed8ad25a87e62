//! Arrows point down only: a crate may depend on crates of lower floors.

use super::Finding;
use crate::metadata::{Package, Workspace};

/// The floor of every member. A crate that is not here has no place yet.
const FLOORS: &[(&str, u8)] = &[
    ("lameduck-core", 0),
    ("lameduck-etcd-proto", 0),
    ("lameduck-pairs", 0),
    ("lameduck-socket", 0),
    ("lameduck-registry", 1),
    ("lameduck-dns", 1),
    ("lameduck-kubernetes", 1),
    ("lameduck-nacos", 1),
    ("lameduck-zookeeper", 1),
    ("lameduck", 2),
    ("lameduck-lab", 3),
    ("lameduck-cli", 4),
    ("xtask", 4),
];

/// The one edge within a floor: thin back ends may use this crate, never the reverse.
const SHARED_BY_BACK_ENDS: &str = "lameduck-registry";

/// The one crate that may have unsafe code: a lint that is forbidden cannot be lowered.
const WITH_UNSAFE: &str = "lameduck-socket";

pub fn check(workspace: &Workspace) -> Vec<Finding> {
    workspace.packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let mut findings = inherits(package);
    let Some(floor) = floor_of(&package.name) else {
        let wrong = format!("{} stands on no floor", package.name);
        let mend = "give it one in xtask/src/tidy/floors.rs and in ARCHITECTURE.md";
        findings.push(Finding::new(&package.manifest, 1, wrong, mend));
        return findings;
    };
    for dependency in &package.dependencies {
        let Some(below) = floor_of(&dependency.name) else {
            continue;
        };
        let shared = dependency.name == SHARED_BY_BACK_ENDS && below == floor;
        if below < floor || shared {
            continue;
        }
        let wrong = format!(
            "{} (floor {floor}) depends on {} (floor {below})",
            package.name, dependency.name
        );
        let mend = "move what both need to a lower floor";
        let line = package.line_of(&dependency.name);
        findings.push(Finding::new(&package.manifest, line, wrong, mend));
    }
    findings
}

fn floor_of(name: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(of, _)| *of == name)
        .map(|(_, floor)| *floor)
}

/// Every member takes the workspace's lints, so that none escapes them. One cannot.
fn inherits(package: &Package) -> Vec<Finding> {
    let own = package.name == WITH_UNSAFE && package.text.contains("unsafe_code = \"deny\"");
    if own || package.text.contains("[lints]\nworkspace = true") {
        return Vec::new();
    }
    let wrong = format!("{} does not take the workspace's lints", package.name);
    vec![Finding::new(
        &package.manifest,
        1,
        wrong,
        "add `[lints]` with `workspace = true`",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn check_edge(name: &str, dependency: &str) -> Vec<String> {
        let package = Package {
            name: name.to_owned(),
            manifest: "crates/x/Cargo.toml".to_owned(),
            text: format!(
                "[lints]\nworkspace = true\n\n[dependencies]\n{dependency}.workspace = true\n"
            ),
            dependencies: vec![Dependency {
                name: dependency.to_owned(),
                dev: false,
            }],
            features: Vec::new(),
            targets: Vec::new(),
        };
        check_package(&package)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn arrows_up_and_sideways_fire() {
        let found = check_edge("lameduck-registry", "lameduck");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/x/Cargo.toml:5: lameduck-registry (floor 1)"));
        assert_eq!(check_edge("lameduck-core", "lameduck-etcd-proto").len(), 1);
        assert_eq!(check_edge("lameduck-registry", "lameduck-dns").len(), 1);
    }

    #[test]
    fn arrows_down_are_silent() {
        for (name, dependency) in [
            ("lameduck", "lameduck-core"),
            ("lameduck-dns", "lameduck-registry"),
            ("lameduck-cli", "lameduck-lab"),
            ("lameduck", "tokio"),
        ] {
            assert_eq!(check_edge(name, dependency), Vec::<String>::new());
        }
    }

    #[test]
    fn crate_without_floor_fires() {
        let found = check_edge("lameduck-new", "tokio");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("stands on no floor"));
    }

    #[test]
    fn missing_lints_fire() {
        let mut package = Package {
            name: "lameduck".to_owned(),
            manifest: "crates/lameduck/Cargo.toml".to_owned(),
            text: "[package]\n".to_owned(),
            dependencies: Vec::new(),
            features: Vec::new(),
            targets: Vec::new(),
        };
        assert_eq!(inherits(&package).len(), 1);
        package.text.push_str("[lints]\nworkspace = true\n");
        assert_eq!(inherits(&package), Vec::new());
    }
}
