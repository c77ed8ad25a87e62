//! What the workspace's manifests say, as cargo reads them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::shell::{self, Failure};

/// The members of the workspace.
pub struct Workspace {
    /// Sorted by name.
    pub packages: Vec<Package>,
    /// Where cargo builds.
    pub target_directory: PathBuf,
}

/// One member.
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its manifest, relative to the root.
    pub manifest: String,
    /// The manifest's text.
    pub text: String,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
    /// Its features, without `default`.
    pub features: Vec<String>,
    /// Its targets.
    pub targets: Vec<Target>,
}

/// One edge of the dependency graph.
pub struct Dependency {
    /// The package at the other end.
    pub name: String,
    /// Whether only tests, benches and examples use it.
    pub dev: bool,
}

/// One thing that cargo builds of a package.
pub struct Target {
    /// `lib`, `bin`, `example`, `bench`, `test`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Workspace {
    /// Asks `cargo metadata`.
    pub fn load() -> Result<Self, Failure> {
        let mut command = shell::cargo(["metadata", "--no-deps", "--format-version", "1"]);
        let output = command.stderr(std::process::Stdio::inherit()).output()?;
        let json: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure(format!("`cargo metadata` gives no JSON: {error}")))?;
        let root = shell::root();
        let mut packages = array(&json, "packages")
            .iter()
            .map(|package| Package::read(package, &root))
            .collect::<Result<Vec<_>, _>>()?;
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        let target_directory = PathBuf::from(text(&json, "target_directory"));
        Ok(Self {
            packages,
            target_directory,
        })
    }
}

impl Package {
    fn read(json: &Value, root: &Path) -> Result<Self, Failure> {
        let manifest = text(json, "manifest_path");
        let features = json["features"].as_object();
        let features = features.into_iter().flat_map(|map| map.keys());
        Ok(Self {
            name: text(json, "name"),
            text: fs::read_to_string(&manifest)?,
            manifest: relative(&manifest, root),
            dependencies: array(json, "dependencies")
                .iter()
                .map(Dependency::read)
                .collect(),
            features: features
                .filter(|name| *name != "default")
                .cloned()
                .collect(),
            targets: array(json, "targets").iter().map(Target::read).collect(),
        })
    }

    /// The line of the manifest that brings a dependency in, from 1.
    pub fn line_of(&self, dependency: &str) -> usize {
        let names = |line: &str| {
            line.strip_prefix(dependency)
                .is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        };
        1 + self.text.lines().position(names).unwrap_or(0)
    }
}

impl Dependency {
    fn read(json: &Value) -> Self {
        Self {
            name: text(json, "name"),
            dev: json["kind"] == "dev",
        }
    }
}

impl Target {
    fn read(json: &Value) -> Self {
        let kind = array(json, "kind")
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default();
        Self {
            kind: kind.to_owned(),
            name: text(json, "name"),
        }
    }
}

fn relative(path: &str, root: &Path) -> String {
    let path = Path::new(path);
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

fn text(json: &Value, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}

fn array<'a>(json: &'a Value, key: &str) -> &'a [Value] {
    json[key].as_array().map_or(&[], Vec::as_slice)
}
