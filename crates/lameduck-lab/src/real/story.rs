//! What the files say of one call, for whoever must find out why it was lost.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lameduck_core::time::Timestamp;

use super::record::{CallId, Line};

/// Gathers the stories of `ids` from the ledger files in `paths`, in the order of `ids`. Times are
/// milliseconds after the first line of each.
///
/// # Errors
///
/// What the file system says.
pub fn stories(ids: &[CallId], paths: &[PathBuf]) -> io::Result<Vec<String>> {
    let mut lines: Vec<Vec<(Line, String)>> = vec![Vec::new(); ids.len()];
    let wanted: HashMap<String, usize> = ids.iter().map(CallId::to_string).zip(0..).collect();
    for path in paths {
        gather(&wanted, path, &mut lines)?;
    }
    let told = ids.iter().zip(lines).map(|(id, lines)| tell(*id, lines));
    Ok(told.collect())
}

/// The third word of a line names its call, where it has one.
fn gather(
    wanted: &HashMap<String, usize>,
    path: &Path,
    lines: &mut [Vec<(Line, String)>],
) -> io::Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    for text in fs::read_to_string(path)?.lines() {
        let position = text.split(' ').nth(2).and_then(|word| wanted.get(word));
        if let Some(position) = position
            && let Ok(line) = text.parse::<Line>()
        {
            lines[*position].push((line, name.clone().into_owned()));
        }
    }
    Ok(())
}

fn tell(id: CallId, mut lines: Vec<(Line, String)>) -> String {
    lines.sort_by_key(|(line, _)| line.at);
    let first = lines.first().map_or(Timestamp::ZERO, |(line, _)| line.at);
    let mut story = format!("call {id}:");
    for (line, name) in lines {
        let at = line.at.saturating_since(first).as_secs_f64() * 1000.0;
        let text = line.to_string();
        let what = text.split_once(' ').map_or("", |(_, what)| what);
        write!(story, "\n  {at:9.3} ms {name}: {what}").expect("writing to a String cannot fail");
    }
    story
}
