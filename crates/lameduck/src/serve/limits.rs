//! Every number of a server that an application may have to change, as one value.

use std::fmt;
use std::time::Duration;

use lameduck_core::limits;

/// The smallest window of a connection, and the first one of every stream (RFC 9113, 6.9.2).
const WINDOW_BYTES_FIRST: u32 = 65_535;
/// The largest window (RFC 9113, 6.9.1).
const WINDOW_BYTES_LAST: u32 = (1 << 31) - 1;
/// The smallest and the largest frame size that a peer may be allowed (RFC 9113, 6.5.2).
const FRAME_BYTES: (u32, u32) = (16_384, (1 << 24) - 1);
/// hyper takes no smaller buffer for HTTP/1.
const HTTP1_HEAD_BYTES_MIN: usize = 8_192;
/// Longer times are no bounds, and do not fit into every clock.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The bounds of a server and of each of its connections.
///
/// [`Default`] has the numbers of [`lameduck_core::limits`], where each has its reason. An application
/// changes some of them:
///
/// ```no_run
/// # async fn build() -> Result<lameduck::Provider, lameduck::provider::BuildError> {
/// let provider = lameduck::Provider::builder("orders")
///     .listen("0.0.0.0:8080")
///     .server(|limits| {
///         limits.connections = 50_000;
///         limits.http1_idle = None;
///     })
///     .build()?;
/// # Ok(provider)
/// # }
/// ```
///
/// `None` means: no bound. `build` refuses values that cannot work ([`LimitsError`]).
///
/// **Memory.** What one peer can make a connection hold is bounded: by unread uploads
/// [`connection_window`](Self::connection_window); by answers that it does not read
/// [`streams`](Self::streams) × ([`send_bytes`](Self::send_bytes) + the piece that the handler gave
/// last); by heads `streams` × [`http2_head_bytes`](Self::http2_head_bytes), or
/// [`http1_head_bytes`](Self::http1_head_bytes) on HTTP/1.1. With the defaults that is 8 MiB, about
/// 23 MB and 16 MiB: below 50 MB for a peer that tries all of it at once, a few kB for one that is
/// idle. The sum over [`connections`](Self::connections) is reached only by as many hostile peers; a
/// port that strangers reach should have fewer connections than memory ÷ 50 MB.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Connections open at once; further ones wait in the kernel's queue. Default:
    /// [`CONNECTIONS_MAX`](limits::CONNECTIONS_MAX).
    pub connections: usize,
    /// From the accept of a connection to its first byte. Default:
    /// [`FIRST_BYTE_MAX`](limits::FIRST_BYTE_MAX). While more than half of
    /// [`connections`](Self::connections) are open, new ones get
    /// [`HANDSHAKE_MAX`](limits::HANDSHAKE_MAX) at most.
    pub first_byte: Option<Duration>,
    /// From a connection's first byte to its first whole request head (HTTP/1.1) or frame (HTTP/2).
    /// Default: [`FIRST_HEAD_MAX`](limits::FIRST_HEAD_MAX).
    pub first_head: Option<Duration>,
    /// HTTP/1.1: from the end of one answer to the next whole request head. Default:
    /// [`HTTP1_IDLE_MAX`](limits::HTTP1_IDLE_MAX).
    pub http1_idle: Option<Duration>,
    /// HTTP/2: a connection without a request gets its GOAWAY after this long, at twice as long at the
    /// latest. Default: `None`, as in axum and tonic: a PING finds peers that are gone.
    pub http2_idle: Option<Duration>,
    /// How old a connection becomes, a tenth more or less: then HTTP/2 gets its GOAWAY in two steps, and
    /// HTTP/1.1 `Connection: close` in its next answer. No request is lost by it: what is in flight
    /// finishes however long it takes, and an idle HTTP/1.1 connection is not closed. Default: `None`.
    /// Where a TCP balancer stands before the port, minutes let clients find new instances.
    pub age: Option<Duration>,
    /// HTTP/1.1: bytes of a request's head, and of its trailers. Longer heads are answered by 431.
    /// Default: [`HTTP1_HEAD_BYTES_MAX`](limits::HTTP1_HEAD_BYTES_MAX).
    pub http1_head_bytes: usize,
    /// HTTP/1.1: headers of a request. More are answered by 431. Default:
    /// [`HTTP1_HEADERS_MAX`](limits::HTTP1_HEADERS_MAX).
    pub http1_headers: usize,
    /// HTTP/1.1: whether a client that shuts down its side of the connection (`nc -N` does) still gets its
    /// answer. Default: `false`, as in axum: the end of a client's side means that it has hung up, and
    /// its handler is cancelled. With `true` the handler of a client that has gone works on until it
    /// is done, or until the kernel gives the connection up, about a minute later; a stop waits for it.
    pub http1_half_close: bool,
    /// HTTP/2: bytes of a request's header list, as RFC 9113 (6.5.2) counts them: 32 more for each
    /// header. Longer ones are answered by 431. Default:
    /// [`HTTP2_HEAD_BYTES_MAX`](limits::HTTP2_HEAD_BYTES_MAX).
    pub http2_head_bytes: u32,
    /// HTTP/2: streams that one peer may have open on one connection. Default:
    /// [`SERVER_STREAMS_MAX`](limits::SERVER_STREAMS_MAX).
    pub streams: u32,
    /// HTTP/2: bytes of one request's body that are held until the handler reads them. Default:
    /// [`WINDOW_BYTES`](limits::WINDOW_BYTES).
    pub stream_window: u32,
    /// HTTP/2: the same for all requests of a connection; not less than
    /// [`stream_window`](Self::stream_window). Default:
    /// [`SERVER_CONNECTION_WINDOW_BYTES`](limits::SERVER_CONNECTION_WINDOW_BYTES).
    pub connection_window: u32,
    /// HTTP/2: bytes of the largest frame that a peer may send. Default:
    /// [`SERVER_FRAME_BYTES_MAX`](limits::SERVER_FRAME_BYTES_MAX).
    pub frame_bytes: u32,
    /// HTTP/2: bytes of one answer that are held for a peer that does not read. Default:
    /// [`SEND_BYTES_MAX`](limits::SEND_BYTES_MAX).
    pub send_bytes: usize,
    /// HTTP/2: streams that may be reset for the peer's fault before its connection ends. Default:
    /// [`SERVER_RESETS_MAX`](limits::SERVER_RESETS_MAX).
    pub resets: usize,
    /// HTTP/2: streams that the peer gave up before they were looked at, waiting at once. Default:
    /// [`SERVER_GIVEN_UP_MAX`](limits::SERVER_GIVEN_UP_MAX).
    pub given_up: usize,
    /// HTTP/2: calls that the peer gives up within [`RAPID_RESET_MAX`](limits::RAPID_RESET_MAX), before
    /// their answers begin, beyond those that are answered: so many at once, and as many a second. Above
    /// that its connection ends by GOAWAY (ENHANCE_YOUR_CALM). Default:
    /// [`RAPID_RESETS_MAX`](limits::RAPID_RESETS_MAX).
    pub rapid_resets: u32,
    /// A PING (HTTP/2), and the kernel's keep-alive probe, after this long without a byte. Default:
    /// [`SERVER_PING_INTERVAL`](limits::SERVER_PING_INTERVAL).
    pub ping_interval: Option<Duration>,
    /// How long the answer to a PING may take before the connection ends. Default:
    /// [`SERVER_PING_MAX`](limits::SERVER_PING_MAX).
    pub ping_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS_MAX,
            first_byte: Some(limits::FIRST_BYTE_MAX),
            first_head: Some(limits::FIRST_HEAD_MAX),
            http1_idle: Some(limits::HTTP1_IDLE_MAX),
            http2_idle: None,
            age: None,
            http1_head_bytes: limits::HTTP1_HEAD_BYTES_MAX,
            http1_headers: limits::HTTP1_HEADERS_MAX,
            http1_half_close: false,
            http2_head_bytes: limits::HTTP2_HEAD_BYTES_MAX,
            streams: limits::SERVER_STREAMS_MAX,
            stream_window: limits::WINDOW_BYTES,
            connection_window: limits::SERVER_CONNECTION_WINDOW_BYTES,
            frame_bytes: limits::SERVER_FRAME_BYTES_MAX,
            send_bytes: limits::SEND_BYTES_MAX,
            resets: limits::SERVER_RESETS_MAX,
            given_up: limits::SERVER_GIVEN_UP_MAX,
            rapid_resets: limits::RAPID_RESETS_MAX,
            ping_interval: Some(limits::SERVER_PING_INTERVAL),
            ping_timeout: limits::SERVER_PING_MAX,
        }
    }
}

impl Limits {
    /// Checks that every value can work.
    ///
    /// # Errors
    ///
    /// [`LimitsError`] names the first field that cannot, and what it may be.
    pub fn check(&self) -> Result<(), LimitsError> {
        let counts = [
            ("connections", self.connections),
            ("streams", self.streams as usize),
            ("http1_headers", self.http1_headers),
            ("send_bytes", self.send_bytes),
            ("rapid_resets", self.rapid_resets as usize),
        ];
        for (field, value) in counts {
            within(field, value, 1, usize::MAX)?;
        }
        within(
            "http1_head_bytes",
            self.http1_head_bytes,
            HTTP1_HEAD_BYTES_MIN,
            usize::MAX / 2,
        )?;
        let (least, most) = FRAME_BYTES;
        within("frame_bytes", self.frame_bytes, least, most)?;
        within("stream_window", self.stream_window, 1, WINDOW_BYTES_LAST)?;
        let least = self.stream_window.max(WINDOW_BYTES_FIRST);
        within(
            "connection_window",
            self.connection_window,
            least,
            WINDOW_BYTES_LAST,
        )?;
        let times = [
            ("first_byte", self.first_byte),
            ("first_head", self.first_head),
            ("http1_idle", self.http1_idle),
            ("http2_idle", self.http2_idle),
            ("age", self.age),
            ("ping_interval", self.ping_interval),
            ("ping_timeout", Some(self.ping_timeout)),
        ];
        for (field, value) in times {
            check_time(field, value)?;
        }
        Ok(())
    }
}

fn within<T: Copy + PartialOrd + fmt::Display>(
    field: &'static str,
    is: T,
    least: T,
    most: T,
) -> Result<(), LimitsError> {
    if (least..=most).contains(&is) {
        return Ok(());
    }
    Err(LimitsError {
        field,
        why: format!("is {is}; it must be {least} at least and {most} at most"),
    })
}

fn check_time(field: &'static str, is: Option<Duration>) -> Result<(), LimitsError> {
    let why = match is {
        Some(Duration::ZERO) => "is zero, which ends every connection at once",
        Some(is) if is > TIME_MAX => "is longer than a year; `None` means no bound",
        _ => return Ok(()),
    };
    Err(LimitsError {
        field,
        why: why.to_owned(),
    })
}

/// A value of [`Limits`] that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsError {
    field: &'static str,
    why: String,
}

impl LimitsError {
    /// The field of [`Limits`] that is wrong.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server's limit `{}` {}", self.field, self.why)
    }
}

impl std::error::Error for LimitsError {}

#[cfg(test)]
mod tests {
    use super::*;

    type Spoil = fn(&mut Limits);

    #[test]
    fn s11_a_value_that_cannot_work_is_refused_by_its_name() {
        assert_eq!(Limits::default().check(), Ok(()));
        let wrong: [(&str, Spoil); 14] = [
            ("connections", |limits| limits.connections = 0),
            ("streams", |limits| limits.streams = 0),
            ("http1_headers", |limits| limits.http1_headers = 0),
            ("send_bytes", |limits| limits.send_bytes = 0),
            ("http1_head_bytes", |limits| limits.http1_head_bytes = 8_191),
            ("frame_bytes", |limits| limits.frame_bytes = 16_383),
            ("frame_bytes", |limits| limits.frame_bytes = 1 << 24),
            ("stream_window", |limits| limits.stream_window = 1 << 31),
            ("connection_window", |limits| {
                limits.connection_window = limits.stream_window - 1;
            }),
            ("connection_window", |limits| {
                (limits.stream_window, limits.connection_window) = (1, 65_534);
            }),
            ("first_byte", |limits| {
                limits.first_byte = Some(Duration::ZERO);
            }),
            ("first_head", |limits| {
                limits.first_head = Some(Duration::MAX);
            }),
            ("http1_idle", |limits| {
                limits.http1_idle = Some(Duration::MAX);
            }),
            ("ping_timeout", |limits| {
                limits.ping_timeout = Duration::ZERO
            }),
        ];
        for (field, spoil) in wrong {
            let mut limits = Limits::default();
            spoil(&mut limits);
            let error = limits.check().expect_err(field);
            assert_eq!(error.field(), field);
            let begins = format!("the server's limit `{field}` is ");
            assert!(error.to_string().starts_with(&begins), "{error}");
        }
    }

    #[test]
    fn s10_a_connection_has_room_for_several_unread_streams() {
        let limits = Limits::default();
        assert!(limits.connection_window >= 8 * limits.stream_window);
    }
}
