//! Facts become log lines here, and nowhere else.
//!
//! The rest of the crate says an [`Event`]; this module turns it into a `tracing` event and hands it
//! to whoever asked to see it. INFO is the life of a process, WARN means that somebody may be woken.

mod emitter;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lameduck_core::event::Event;
use lameduck_core::name::ServiceName;
use lameduck_core::registry::Want;
use tracing::level_filters::LevelFilter;
use tracing::{Level, debug, error, info, trace, warn};

use crate::foreign::{Panicked, discard, quietly};
use emitter::Emitter;
pub(crate) use emitter::Said;

/// Sees every event. An observer of a provider has a thread of its own; one of a hub is called where
/// the event happens, within a call or a directory's task, so that it must not block. One that
/// panics sees nothing more, and an ERROR says so.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Where events go. Clones share the observers.
///
/// The log is written by a thread of its own, so that no blocked pipe stops who says an event.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Those that are called where events happen.
    here: Observers,
    emitter: Emitter,
}

impl Default for Events {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Events {
    /// Events go to `tracing` by a thread, and to these where they happen.
    #[must_use]
    pub(crate) fn new(observers: Vec<Observer>) -> Self {
        let inner = Inner {
            here: Observers::new(observers),
            emitter: Emitter::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Events go to `tracing` and to these by one thread: whoever says one waits for nobody.
    #[must_use]
    pub(crate) fn apart(observers: Vec<Observer>) -> Self {
        let inner = Inner {
            here: Observers::default(),
            emitter: Emitter::new(Observers::new(observers)),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Whether observers are called where events happen: those made for each call are only worth
    /// making then.
    #[must_use]
    pub(crate) fn is_observed(&self) -> bool {
        !self.inner.here.is_empty()
    }

    /// Says that something happened.
    pub(crate) fn emit(&self, event: &Event) {
        self.inner.emitter.say(event);
        if self.is_observed() {
            let left_out = |why| self.inner.emitter.left_out(why);
            self.inner.here.show(event, left_out);
        }
    }

    /// What waits until all that was emitted by now is shown.
    pub(crate) fn said(&self) -> Said {
        self.inner.emitter.said()
    }
}

/// Those that want to see every event, without those that have panicked.
#[derive(Default)]
struct Observers {
    all: Box<[Mutex<Option<Observer>>]>,
}

impl Observers {
    fn new(observers: Vec<Observer>) -> Self {
        let all = observers.into_iter().map(|one| Mutex::new(Some(one)));
        Self { all: all.collect() }
    }

    const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Shows the event to each. One that panics is dropped, and `left_out` hears of it.
    fn show(&self, event: &Event, left_out: impl Fn(Panicked)) {
        for place in &self.all {
            let lock = || place.lock().unwrap_or_else(PoisonError::into_inner);
            // Not called under the lock: it may say events itself.
            let Some(observer) = lock().clone() else {
                continue;
            };
            let Err(why) = quietly(|| observer(event)) else {
                continue;
            };
            let first = lock().take();
            if first.is_some() {
                left_out(why);
            }
            discard((first, observer));
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observers({})", self.all.len())
    }
}

fn log_left_out(why: &Panicked) {
    error!(%why, "an observer of events failed and is called no more: mend it and start again");
}

/// At which level an event is logged, or a more important one: what nobody would see is not queued.
const fn level(event: &Event) -> LevelFilter {
    LevelFilter::from_level(match event {
        Event::Picked { .. } => Level::TRACE,
        Event::TierChanged { .. } | Event::Replaced { .. } | Event::Disconnected { .. } => {
            Level::DEBUG
        }
        _ => Level::INFO,
    })
}

fn log(event: &Event) {
    match event {
        Event::PhaseEntered { life, phase } => info!(%life, phase = phase.as_str(), "phase"),
        Event::Listening { services, address } => {
            let services: Vec<&str> = services.iter().map(ServiceName::as_str).collect();
            info!(services = services.join(","), %address, "listening");
        }
        Event::AdvertisedLoopback { registry, address } => warn!(
            %registry,
            %address,
            "the advertised address reaches this machine only, and the registry is elsewhere"
        ),
        Event::Registration {
            registry,
            address,
            want,
            error,
        } => match error {
            None if matches!(want, Want::Present { .. }) => {
                info!(%registry, %address, registration = word(*want), "registration confirmed");
            }
            // Not always by the registry's word: a lease may have ended by itself.
            None => info!(%registry, registration = word(*want), "registration taken back"),
            Some(error) => warn!(
                %registry,
                %address,
                wanted = word(*want),
                %error,
                "the registry does not confirm the registration; it is tried again"
            ),
        },
        Event::NeverRegistered { registry, error } => info!(
            %registry,
            error = error.as_deref().unwrap_or("none"),
            "never registered, as far as is known: nothing has to be taken back"
        ),
        Event::MetadataDenied { registry } => warn!(
            %registry,
            "the registry denies our records: only the address is published; allow the prefix _lameduck/"
        ),
        Event::FloorClamped { wanted, floor } => warn!(
            ?wanted,
            ?floor,
            "callers may learn too late of a stop: raise the budget"
        ),
        Event::NoClosing { life } => warn!(
            %life,
            "floor and quiet window are zero: a stop will not wait until callers know of it"
        ),
        Event::Stopped(report) if report.exit_code() == 0 => {
            info!(life = %report.life, "{report}");
        }
        Event::Stopped(report) => warn!(life = %report.life, "{report}"),
        _ => log_of_connections(event),
    }
}

/// What a server says of those who connect to it.
fn log_of_connections(event: &Event) {
    match event {
        Event::AcceptPaused { address, why } => warn!(
            %address,
            %why,
            "no connection is accepted for now: new ones wait in the kernel's queue"
        ),
        Event::AcceptResumed { address, after } => {
            info!(%address, ?after, "connections are accepted again");
        }
        Event::AuthorityRefused { remote, authority } => warn!(
            %remote,
            ?authority,
            "a client's requests are reset: their :authority is no host; set one there \
             (grpc.default_authority in C-core's clients, grpc.WithAuthority in Go's)"
        ),
        Event::TooManyResets { remote } => warn!(
            %remote,
            "a client's connection was ended: it resets calls as soon as it has sent them; where it is no \
             attack, raise `rapid_resets` by Builder::server"
        ),
        _ => log_of_listed(event),
    }
}

/// What readers of the registry are to see, in the words of its records.
const fn word(want: Want) -> &'static str {
    match want {
        Want::Present { ready: true, .. } => "present",
        Want::Present { ready: false, .. } => "present, not ready",
        Want::Closing => "closing",
        Want::Gone => "gone",
    }
}

/// What is wrong with those that a registry lists.
fn log_of_listed(event: &Event) {
    match event {
        Event::RecordSkipped { service, what } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(
                %service,
                %what,
                "a value in the registry is no instance and is left out: correct or delete its key"
            );
        }
        Event::HealthRefused {
            service,
            address,
            error,
        } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(
                %service,
                %address,
                %error,
                "an instance does not let its health be asked, and is used as one without a health service: \
                 allow grpc.health.v1.Health/Watch there, or say ChannelBuilder::health(false)"
            );
        }
        Event::AddressClaimed {
            service,
            address,
            lives: [one, other],
        } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(
                %service,
                %address,
                %one,
                %other,
                "two lives are registered at one address: two programs advertise it, or something keeps a \
                 registration alive whose program has gone"
            );
        }
        Event::WrongService {
            service,
            address,
            serves,
        } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(
                %service,
                %address,
                "an instance is listed for a service and gets no calls: it says that it serves {serves}, not \
                 {service}"
            );
        }
        _ => log_of_callers(event),
    }
}

fn log_of_callers(event: &Event) {
    match event {
        Event::Closing {
            address,
            incarnation,
            source,
        } => {
            info!(%address, %incarnation, ?source, "closing");
        }
        Event::ClosingLifted {
            address,
            incarnation,
        } => {
            info!(%address, %incarnation, "closing lifted");
        }
        Event::TierChanged {
            address,
            incarnation,
            tier,
        } => {
            debug!(%address, %incarnation, ?tier, "tier");
        }
        Event::Replaced { address, proven } => debug!(%address, proven, "call placed once more"),
        Event::Disconnected { address, reason } => debug!(%address, %reason, "disconnected"),
        _ => log_of_outages(event),
    }
}

/// What a caller misses, and when it has it back.
fn log_of_outages(event: &Event) {
    match event {
        Event::StreamsUsedUp { service, why } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            info!(%service, %why, "calls wait for a stream");
        }
        Event::DescriptorsShort { error } => warn!(
            %error,
            "instances are not dialled for want of descriptors: raise the limit (ulimit -n)"
        ),
        Event::DescriptorsFree { after } => info!(?after, "there are descriptors for dials again"),
        Event::DirectoryStale { service, error } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(%service, %error, "the registry cannot be read; what was known is kept");
        }
        Event::DirectoryLive { service, after } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            info!(%service, ?after, "the registry can be read again");
        }
        Event::Unreachable {
            service,
            address,
            incarnation,
            error,
        } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            warn!(
                %service,
                %address,
                %incarnation,
                %error,
                "an instance that is listed cannot be reached; it is dialled again"
            );
        }
        Event::UnreachableEnded {
            service,
            address,
            incarnation,
            after,
            reached,
        } => {
            let service = service.as_ref().map_or("", ServiceName::as_str);
            let how = if *reached {
                "the instance can be reached again"
            } else {
                "the instance is not listed any more, and not dialled"
            };
            info!(%service, %address, %incarnation, ?after, "{how}");
        }
        other => trace!(?other, "event"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::event::Phase;
    use lameduck_core::instance::{BootId, Incarnation, Life};
    use lameduck_core::limits::EVENTS_WAITING_MAX;
    use lameduck_core::name::Address;
    use std::io::{self, Write};
    use std::sync::{Mutex, OnceLock, mpsc};
    use std::time::Duration;

    #[test]
    fn observers_see_every_event() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&seen);
        let observer: Observer = Arc::new(move |event: &Event| {
            notes.lock().expect("no panic").push(event.clone());
        });
        let event = Event::PhaseEntered {
            life: Life::first(BootId::from_bits(1)),
            phase: Phase::Serving,
        };
        let events = Events::new(vec![observer]);
        events.emit(&event);
        assert!(events.is_observed());
        assert_eq!(*seen.lock().expect("no panic"), [event]);
    }

    fn serving() -> Event {
        Event::PhaseEntered {
            life: Life::first(BootId::from_bits(1)),
            phase: Phase::Serving,
        }
    }

    #[test]
    fn s03_what_an_observer_is_too_slow_for_is_lost_and_counted_and_the_rest_in_order() {
        let (release, blocked) = mpsc::channel::<()>();
        let (blocked, shown) = (Mutex::new(blocked), Arc::new(Mutex::new(Vec::new())));
        let notes = Arc::clone(&shown);
        let observer: Observer = Arc::new(move |event: &Event| {
            // Once: the sender is gone after that.
            let _ = blocked.lock().expect("no panic").recv();
            if let Event::AcceptResumed { after, .. } = event {
                notes.lock().expect("no panic").push(*after);
            }
        });
        let more = 10;
        let text = logged_by(|| {
            let events = Events::apart(vec![observer]);
            for number in 0..EVENTS_WAITING_MAX + more {
                events.emit(&Event::AcceptResumed {
                    address: "10.0.0.1:80".parse().expect("an address"),
                    after: Duration::from_micros(number as u64),
                });
            }
            drop(release);
            events.said().wait(Duration::from_secs(20));
            events.emit(&serving());
            events
        });
        let shown = shown.lock().expect("no panic");
        // The first may have left the queue before it was full.
        assert!((EVENTS_WAITING_MAX..=EVENTS_WAITING_MAX + 1).contains(&shown.len()));
        assert!(shown.is_sorted());
        let lost = EVENTS_WAITING_MAX + more - shown.len();
        assert!(text.contains(&format!("lost={lost}")), "nothing of {lost}");
    }

    #[test]
    fn r11_an_observer_that_panics_is_one_error_line_wherever_it_is_called() {
        for make in [Events::apart, Events::new] {
            let text = logged_by(|| {
                let observer: Observer = Arc::new(|_: &Event| panic!("no such index"));
                let events = make(vec![observer]);
                events.emit(&serving());
                events.emit(&serving());
                events
            });
            let errors = text.lines().filter(|line| line.contains("ERROR"));
            let errors: Vec<&str> = errors.collect();
            assert_eq!(errors.len(), 1, "{text}");
            assert!(errors[0].contains("it panicked: no such index"), "{text}");
        }
    }

    /// What is logged, as text.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Keeps two dispatchers for as long as the process lives. While there is one alone, the thread that
    /// comes upon an event's place first decides for all whether it is logged, and the other tests'
    /// threads have no subscriber.
    fn keep_two_dispatchers() {
        static KEPT: OnceLock<[tracing::Dispatch; 2]> = OnceLock::new();
        let sink = || tracing_subscriber::fmt().with_writer(io::sink).finish();
        KEPT.get_or_init(|| {
            let kept = [(); 2].map(|()| tracing::Dispatch::new(sink()));
            // What was decided so by now.
            tracing::callsite::rebuild_interest_cache();
            kept
        });
    }

    fn logged(event: &Event) -> String {
        logged_by(|| {
            let events = Events::default();
            events.emit(event);
            events
        })
    }

    /// What is logged of what `emit` emits.
    fn logged_by(emit: impl FnOnce() -> Events) -> String {
        keep_two_dispatchers();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            emit().said().wait(Duration::from_secs(20));
        });
        let text = lines.0.lock().expect("no panic").clone();
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn an_outage_is_a_warning_and_its_end_is_not() {
        let service: Option<ServiceName> = "orders".parse().ok();
        let address: Address = "10.0.0.1:80".parse().expect("an address");
        let incarnation = Incarnation::Life(Life::first(BootId::from_bits(1)));
        let after = Duration::from_millis(1_500);
        let ended = |reached| Event::UnreachableEnded {
            service: service.clone(),
            address: address.clone(),
            incarnation,
            after,
            reached,
        };
        let missed = Event::Unreachable {
            service: service.clone(),
            address: address.clone(),
            incarnation,
            error: "refused".to_owned(),
        };
        let lost = Event::DirectoryStale {
            service: service.clone(),
            error: "no answer".to_owned(),
        };
        let found = Event::DirectoryLive {
            service: service.clone(),
            after,
        };
        let wrong = Event::WrongService {
            service: service.clone(),
            address: address.clone(),
            serves: "test".to_owned(),
        };
        let claimed = Event::AddressClaimed {
            service: service.clone(),
            address: address.clone(),
            lives: [incarnation, Incarnation::Lease(0x7f)],
        };
        let unasked = Event::HealthRefused {
            service: service.clone(),
            address: address.clone(),
            error: "PermissionDenied: no".to_owned(),
        };
        let lines = [
            (
                claimed,
                ["WARN", "two programs advertise it", "other=lease 7f"],
            ),
            (
                unasked,
                ["WARN", "its health be asked", "error=PermissionDenied: no"],
            ),
            (
                wrong,
                ["WARN", "it serves test, not orders", "service=orders"],
            ),
            (missed, ["WARN", "cannot be reached", "error=refused"]),
            (ended(true), ["INFO", "can be reached again", "after=1.5s"]),
            (ended(false), ["INFO", "not listed any more", "after=1.5s"]),
            (lost, ["WARN", "cannot be read", "error=no answer"]),
            (found, ["INFO", "can be read again", "after=1.5s"]),
        ];
        for (event, parts) in lines {
            let line = logged(&event);
            assert!(line.contains("service=orders"), "{line}");
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
    }

    #[test]
    fn only_what_a_registry_lists_is_called_confirmed() {
        let registry = "etcd://h:1".to_owned();
        let reached = |want| Event::Registration {
            registry: registry.clone(),
            address: "10.0.0.1:80".parse().expect("an address"),
            want,
            error: None,
        };
        let life = Life::first(BootId::from_bits(1));
        let present = logged(&reached(Want::Present { life, ready: true }));
        let parts = ["registration confirmed", "address=10.0.0.1:80"];
        assert!(parts.iter().all(|part| present.contains(part)), "{present}");
        let never = Event::NeverRegistered {
            registry: registry.clone(),
            error: Some("no answer".to_owned()),
        };
        let never = logged(&never);
        let parts = ["INFO", "never registered", "nothing has to be taken back"];
        let named = ["etcd://h:1", "no answer"];
        assert!(
            parts.iter().chain(&named).all(|part| never.contains(part)),
            "{never}"
        );
        for line in [
            logged(&reached(Want::Closing)),
            logged(&reached(Want::Gone)),
            never,
        ] {
            assert!(!line.contains("confirm"), "{line}");
        }
    }

    #[test]
    fn a_skipped_value_is_one_warning_that_says_what_to_do() {
        let event = Event::RecordSkipped {
            service: "orders".parse().ok(),
            what: "key \"orders/7\": value \"h\": no port".to_owned(),
        };
        let text = logged(&event);
        assert_eq!(text.lines().count(), 1, "{text}");
        let parts = [
            "WARN",
            "correct or delete its key",
            "service=orders",
            "what=key \"orders/7\": value \"h\": no port",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}
