//! How a run went over time, in numbers that a page can draw: bounded, however long the run was.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lameduck_core::instance::Life;
use lameduck_core::time::Timestamp;

use super::books::Books;
use super::ledger::{Call, End, Ledger, LifeAccount};
use super::limits::{CHART_LOST_MAX, CHART_POINT_MIN, CHART_POINTS_MAX};
use super::oracle::{Fault, History, loss, lost_at};
use super::plan::Plan;
use super::record::{CallId, Kind};
use super::report::{Report, millis};
use super::story::stories;

/// A run over time. Times are milliseconds since the first call was due.
#[derive(Clone, Debug)]
pub struct Chart {
    /// When the callers stopped.
    pub end_ms: f64,
    /// How much time one point stands for.
    pub point_ms: f64,
    /// All servers together.
    pub points: Vec<Point>,
    /// One for each server.
    pub rows: Vec<Row>,
    /// What the lab did, in its order.
    pub marks: Vec<Mark>,
    /// The first lost calls.
    pub lost: Vec<Lost>,
    /// How many were lost at all.
    pub lost_all: usize,
}

/// A short while of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Calls answered in it.
    pub answered: u32,
    /// Calls lost in it.
    pub lost: u32,
    /// Median latency of the unary calls due in it, from the instant due; `None` without any.
    pub p50_ms: Option<f64>,
    /// 99 of 100 were not slower.
    pub p99_ms: Option<f64>,
}

/// One server's place.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which one, from 0.
    pub server: u16,
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// Calls that it started, by point.
    pub started: Vec<u32>,
    /// Calls lost that were placed or started there last, by point.
    pub lost: Vec<u32>,
    /// Phases of its lives, in their order; they may lie over each other.
    pub bands: Vec<Band>,
}

/// A phase of one life.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// From when.
    pub from_ms: f64,
    /// Until when.
    pub to_ms: f64,
    /// What the server called it.
    pub phase: String,
}

/// Something that the lab did.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// When.
    pub at_ms: f64,
    /// To which server.
    pub server: u16,
    /// What.
    pub what: &'static str,
}

/// A lost call.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Which.
    pub id: CallId,
    /// What it asked for.
    pub kind: Kind,
    /// When it was due.
    pub due_ms: f64,
    /// When it was lost.
    pub at_ms: f64,
    /// The server where it had been last, where anybody knows.
    pub server: Option<u16>,
    /// What is wrong with it, in a word each.
    pub faults: Vec<String>,
    /// All that was written about it.
    pub story: String,
}

/// Draws a finished run up from its files.
///
/// # Errors
///
/// Where the files cannot be read again for the stories.
pub fn chart(books: &Books, plan: &Plan, history: &History, report: &Report) -> io::Result<Chart> {
    let scale = Scale::new(plan.start(), history.stopped);
    let ledger = &books.ledger;
    let mut lost = lost_calls(ledger, plan, &scale, report);
    let lost_all = lost.len();
    let mut rows = rows(ledger, history, &scale);
    let points = points(ledger, plan, &scale, &lost);
    count_by_server(ledger, &scale, &lost, &mut rows);
    lost.truncate(CHART_LOST_MAX);
    let ids: Vec<CallId> = lost.iter().map(|lost| lost.id).collect();
    for (lost, story) in lost.iter_mut().zip(stories(&ids, &books.paths)?) {
        lost.story = story;
    }
    Ok(Chart {
        end_ms: scale.ms(history.stopped),
        point_ms: millis(scale.point),
        points,
        rows,
        marks: marks(history, &scale),
        lost,
        lost_all,
    })
}

/// Instants as points.
struct Scale {
    start: Timestamp,
    point: Duration,
    points: usize,
}

impl Scale {
    fn new(start: Timestamp, stopped: Timestamp) -> Self {
        let span = stopped.saturating_since(start).max(CHART_POINT_MIN);
        let point = CHART_POINT_MIN.max(span / CHART_POINTS_MAX as u32);
        let points = span.as_nanos().div_ceil(point.as_nanos()) as usize;
        Self {
            start,
            point,
            points,
        }
    }

    fn ms(&self, instant: Timestamp) -> f64 {
        millis(instant.saturating_since(self.start))
    }

    /// The point that `instant` falls into; what comes after the end, into the last.
    fn index(&self, instant: Timestamp) -> usize {
        let since = instant.saturating_since(self.start).as_nanos();
        let index = (since / self.point.as_nanos()) as usize;
        index.min(self.points - 1)
    }

    fn index_ms(&self, ms: f64) -> usize {
        self.index(self.start + Duration::from_secs_f64(ms / 1000.0))
    }
}

/// Every call that was lost or is faulty, in the order of their losses.
fn lost_calls(ledger: &Ledger, plan: &Plan, scale: &Scale, report: &Report) -> Vec<Lost> {
    let mut faults: BTreeMap<CallId, Vec<Fault>> = BTreeMap::new();
    for (id, fault) in &report.faults {
        faults.entry(*id).or_default().push(*fault);
    }
    for (id, call) in ledger.calls() {
        if let Some(fault) = loss(call, &plan.call(id)) {
            let known = faults.entry(id).or_default();
            if !known.contains(&fault) {
                known.push(fault);
            }
        }
    }
    let nothing = Call::default();
    let all: BTreeMap<CallId, &Call> = ledger
        .calls()
        .filter(|(id, _)| faults.contains_key(id))
        .collect();
    let tell = |(id, faults): (CallId, Vec<Fault>)| {
        let (planned, call) = (plan.call(id), all.get(&id).copied().unwrap_or(&nothing));
        let life = call.picked.or(call.starts.last().map(|(life, _)| *life));
        Lost {
            id,
            kind: planned.kind,
            due_ms: scale.ms(planned.due),
            at_ms: scale.ms(lost_at(call, &planned)),
            server: life
                .and_then(|life| ledger.life(life))
                .map(|account| account.server),
            faults: faults.iter().map(|fault| format!("{fault:?}")).collect(),
            story: String::new(),
        }
    };
    let mut lost: Vec<Lost> = faults.into_iter().map(tell).collect();
    lost.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    lost
}

fn points(ledger: &Ledger, plan: &Plan, scale: &Scale, lost: &[Lost]) -> Vec<Point> {
    let mut points = vec![Point::default(); scale.points];
    let mut latencies: Vec<Vec<f64>> = vec![Vec::new(); scale.points];
    for (id, call) in ledger.calls() {
        let planned = plan.call(id);
        let End::Answered { at, .. } = call.end else {
            continue;
        };
        if loss(call, &planned).is_none() {
            points[scale.index(at)].answered += 1;
        }
        if planned.kind != Kind::Stream {
            let latency = millis(at.saturating_since(planned.due));
            latencies[scale.index(planned.due)].push(latency);
        }
    }
    for lost in lost {
        points[scale.index_ms(lost.at_ms)].lost += 1;
    }
    for (point, latencies) in points.iter_mut().zip(&mut latencies) {
        latencies.sort_by(f64::total_cmp);
        point.p50_ms = share(latencies, 50);
        point.p99_ms = share(latencies, 99);
    }
    points
}

/// The value that `percent` of the sorted `values` do not pass.
fn share(values: &[f64], percent: usize) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    values.get(last * percent / 100).copied()
}

fn rows(ledger: &Ledger, history: &History, scale: &Scale) -> Vec<Row> {
    let mut rows: BTreeMap<u16, Row> = BTreeMap::new();
    let mut lives: Vec<(Life, &LifeAccount)> = ledger.lives().collect();
    lives.sort_by_key(|(_, account)| account.born);
    for (life, account) in lives {
        let row = rows.entry(account.server).or_insert_with(|| Row {
            server: account.server,
            address: None,
            started: vec![0; scale.points],
            lost: vec![0; scale.points],
            bands: Vec::new(),
        });
        row.address = Some(account.address);
        row.bands.extend(bands(life, account, history, scale));
    }
    rows.into_values().collect()
}

fn bands(life: Life, account: &LifeAccount, history: &History, scale: &Scale) -> Vec<Band> {
    let drained = history.drains.iter().find(|drain| drain.life == life);
    let killed = history.kills.iter().find(|kill| kill.life == life);
    let end = drained.map(|drain| drain.exited);
    let end = end
        .or(killed.map(|kill| kill.at))
        .unwrap_or(history.stopped);
    let serving = (account.born, "serving".to_owned());
    let later = account.phases.iter().cloned();
    let begins: Vec<(Timestamp, String)> = [serving].into_iter().chain(later).collect();
    let ends = begins.iter().skip(1).map(|(at, _)| *at).chain([end]);
    let band = |from: Timestamp, to: Timestamp, phase: String| Band {
        from_ms: scale.ms(from),
        to_ms: scale.ms(to.max(from)),
        phase,
    };
    let mut bands: Vec<Band> = begins
        .iter()
        .zip(ends)
        .map(|((from, phase), to)| band(*from, to, phase.clone()))
        .collect();
    let frozen = history.freezes.iter().filter(|freeze| freeze.life == life);
    bands.extend(frozen.map(|freeze| band(freeze.at, freeze.thawed, "frozen".to_owned())));
    bands
}

fn count_by_server(ledger: &Ledger, scale: &Scale, lost: &[Lost], rows: &mut [Row]) {
    for (_, call) in ledger.calls() {
        for (life, at) in &call.starts {
            let server = ledger.life(*life).map(|account| account.server);
            if let Some(row) = rows.iter_mut().find(|row| Some(row.server) == server) {
                row.started[scale.index(*at)] += 1;
            }
        }
    }
    for lost in lost {
        if let Some(row) = rows.iter_mut().find(|row| Some(row.server) == lost.server) {
            row.lost[scale.index_ms(lost.at_ms)] += 1;
        }
    }
}

fn marks(history: &History, scale: &Scale) -> Vec<Mark> {
    let mark = |at: Timestamp, server: u16, what: &'static str| Mark {
        at_ms: scale.ms(at),
        server,
        what,
    };
    let drains = history.drains.iter();
    let drains = drains.map(|drain| mark(drain.signalled, drain.server, "told to leave"));
    let kills = history.kills.iter();
    let kills = kills.map(|kill| mark(kill.at, kill.server, "killed"));
    let freezes = history.freezes.iter();
    let freezes = freezes.map(|freeze| mark(freeze.at, freeze.server, "frozen"));
    let mut marks: Vec<Mark> = drains.chain(kills).chain(freezes).collect();
    marks.sort_by(|one, other| one.at_ms.total_cmp(&other.at_ms));
    marks
}
