//! Heads and trailers that the peer takes.
//!
//! A header list beyond what the peer takes costs the peer its call, and with many HTTP/2 stacks the
//! whole connection with all calls on it. So the status of a gRPC call is made shorter: its text, its
//! details, at last its metadata; never its code. What cannot be made shorter fails alone.

use std::error::Error;
use std::fmt;

use ::http::header::{CONNECTION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, VARY};
use lameduck_core::conn::Protocol;
use lameduck_core::limits::{
    HTTP1_STATUS_BYTES, STATUS_BYTES, STATUS_BYTES_MAX, STATUS_TEXT_BYTES_MIN,
};

use crate::cell::wire::Wire;
use crate::frames::Settings;
use crate::mark;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const TEXT: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// How a text ends that was cut.
const CUT: &[u8] = b"... (cut)";
/// What RFC 9113 (6.5.2) adds for each header.
const PER_HEADER: usize = 32;
/// What is added below: `:status`, `date`, `content-length`.
const RESERVE: usize = 192;

/// How much of a header list the peer takes, in bytes as RFC 9113 (6.5.2) counts them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// What a failed call's list is made to fit.
    status: usize,
    /// What the peer has said that it takes at most.
    all: Option<usize>,
}

impl Room {
    pub(super) fn of(wire: &Wire, protocol: Protocol) -> Self {
        let (sure, all) = match (protocol, wire.headers_max()) {
            (Protocol::Http1, _) => (HTTP1_STATUS_BYTES, None),
            (Protocol::Http2, None) => (STATUS_BYTES, None),
            (Protocol::Http2, Some(said)) => (said.sure as usize, Some(said.most as usize)),
        };
        Self {
            status: sure.min(STATUS_BYTES_MAX),
            all,
        }
    }
}

/// Remembers what the peer takes.
pub(super) fn note(wire: &Wire, settings: Settings) {
    if let Some(most) = settings.headers_max {
        // C-core refuses lists between its soft and its hard limit now and then, and announces the hard one.
        // By its defaults the soft one is half as much.
        let sure = if settings.is_c_core { most / 2 } else { most };
        wire.set_headers_max(sure, most);
    }
}

/// A header list that the peer does not take.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooLarge {
    size: usize,
    most: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, most } = self;
        write!(
            f,
            "the answer's header list has {size} bytes, and the caller takes {most}"
        )
    }
}

impl Error for TooLarge {}

impl TooLarge {
    /// The status that a gRPC call gets instead.
    pub(super) fn status(&self) -> tonic::Status {
        tonic::Status::resource_exhausted(self.to_string())
    }
}

/// Makes a head or trailers fit.
///
/// # Errors
/// [`TooLarge`] where the peer has said that it takes less, and nothing of it may be left out: it is no
/// failed gRPC call.
pub(super) fn fit(headers: &mut HeaderMap, room: Room) -> Result<(), TooLarge> {
    let size = list_size(headers);
    if size <= room.status {
        return Ok(());
    }
    if is_failure(headers) {
        shorten(headers, room);
        return Ok(());
    }
    match room.all {
        Some(most) if size > most => Err(TooLarge { size, most }),
        _ => Ok(()),
    }
}

fn list_size(headers: &HeaderMap) -> usize {
    let sizes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + PER_HEADER);
    sizes.sum::<usize>() + RESERVE
}

fn is_failure(headers: &HeaderMap) -> bool {
    headers.get(STATUS).is_some_and(|code| code != "0")
}

fn shorten(headers: &mut HeaderMap, room: Room) {
    let text = headers.remove(TEXT);
    // The text has its name and its 32 bytes too.
    let own = TEXT.as_str().len() + PER_HEADER;
    let text_len = text.as_ref().map_or(0, HeaderValue::len);
    let kept = text_len.min(STATUS_TEXT_BYTES_MIN);
    let wanted = kept + own;
    if list_size(headers) + wanted > room.status {
        headers.remove(DETAILS);
    }
    while let Some(all) = room.all
        && list_size(headers) + wanted > all
        && let Some(largest) = largest_metadata(headers)
    {
        headers.remove(largest);
    }
    let (Some(text), rest) = (text, list_size(headers) + own) else {
        return;
    };
    let least = match room.all {
        Some(all) => kept.min(all.saturating_sub(rest)),
        None => kept,
    };
    let most = room.status.saturating_sub(rest).max(least);
    if let Ok(text) = HeaderValue::from_bytes(&cut_text(text.as_bytes(), most)) {
        headers.insert(TEXT, text);
    }
}

/// The largest header that is none of the protocol's own.
fn largest_metadata(headers: &HeaderMap) -> Option<HeaderName> {
    let is_own = |name: &HeaderName| {
        [CONTENT_TYPE, CONNECTION, DATE, VARY, STATUS].contains(name)
            || [mark::LIFE, mark::CLOSING, mark::REFUSED].contains(name)
            || name.as_str().starts_with("access-control-")
    };
    let metadata = headers.iter().filter(|(name, _)| !is_own(name));
    let largest = metadata.max_by_key(|(_, value)| value.len());
    largest.map(|(name, _)| name.clone())
}

/// A percent-encoded text in at most so many bytes, cut between two characters, with a visible end.
fn cut_text(text: &[u8], most: usize) -> Vec<u8> {
    if text.len() <= most {
        return text.to_vec();
    }
    let Some(most) = most.checked_sub(CUT.len()) else {
        return Vec::new();
    };
    let (mut at, mut boundary) = (0, 0);
    while at < text.len() {
        let (byte, next) = decode_one(text, at);
        // All bytes of a character but its first are 10xxxxxx.
        if byte & 0xc0 != 0x80 {
            boundary = at;
        }
        if next > most {
            break;
        }
        at = next;
    }
    [&text[..boundary], CUT].concat()
}

/// The byte that stands at `at`, and where the next one begins.
fn decode_one(text: &[u8], at: usize) -> (u8, usize) {
    let coded = match text[at..] {
        [b'%', high, low, ..] => digit(high).zip(digit(low)),
        _ => None,
    };
    match coded {
        Some((high, low)) => (high << 4 | low, at + 3),
        None => (text[at], at + 1),
    }
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANNOUNCED: Room = Room {
        status: 8_192,
        all: Some(16_384),
    };

    fn failure(text: &str, more: &[(&'static str, usize)]) -> HeaderMap {
        let status = tonic::Status::aborted(text);
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).expect("a header");
        for (name, size) in more {
            let value = HeaderValue::try_from("x".repeat(*size)).expect("visible");
            headers.insert(*name, value);
        }
        headers
    }

    fn text(headers: &HeaderMap) -> String {
        let status = tonic::Status::from_header_map(headers).expect("a status");
        assert_eq!(status.code(), tonic::Code::Aborted);
        status.message().to_owned()
    }

    #[test]
    fn d03_what_fits_stays_as_it_is() {
        let mut headers = failure(
            "short",
            &[("grpc-status-details-bin", 5_000), ("mine", 2_000)],
        );
        let before = headers.clone();
        fit(&mut headers, ANNOUNCED).expect("a failure always fits");
        assert_eq!(headers, before);
    }

    #[test]
    fn d03_the_text_is_cut_first_then_details_go_then_metadata() {
        let long = "x".repeat(100_000);
        let mut headers = failure(
            &long,
            &[("grpc-status-details-bin", 3_000), ("mine", 1_000)],
        );
        fit(&mut headers, ANNOUNCED).expect("a failure always fits");
        assert!(text(&headers).ends_with("x... (cut)"));
        assert_eq!(headers.len(), 4);
        assert_eq!(list_size(&headers), ANNOUNCED.status);

        let mut headers = failure(
            &long,
            &[("grpc-status-details-bin", 7_500), ("mine", 1_000)],
        );
        fit(&mut headers, ANNOUNCED).expect("a failure always fits");
        assert!(!headers.contains_key("grpc-status-details-bin"));
        assert_eq!(list_size(&headers), ANNOUNCED.status);

        // The peer takes it, if perhaps not always: nothing of the application's is left out.
        let mut headers = failure(&long, &[("mine", 12_000)]);
        fit(&mut headers, ANNOUNCED).expect("a failure always fits");
        assert_eq!(text(&headers).len(), STATUS_TEXT_BYTES_MIN);
        assert!(headers.contains_key("mine"));

        let mut headers = failure(&long, &[("mine", 15_000), ("other", 14_000), ("small", 9)]);
        fit(&mut headers, ANNOUNCED).expect("a failure always fits");
        assert!(!headers.contains_key("mine") && headers.contains_key("other"));
        assert!(headers.contains_key("small"));
        assert!(list_size(&headers) <= 16_384);
    }

    #[test]
    fn d03_the_code_is_kept_whatever_the_peer_takes() {
        for all in [0, 1, 100, 300, 1_000] {
            let room = Room {
                status: all,
                all: Some(all),
            };
            let mut headers = failure(&"x".repeat(9_000), &[("mine", 9_000)]);
            fit(&mut headers, room).expect("a failure always fits");
            assert_eq!(headers["grpc-status"], "10");
            assert!(!headers.contains_key("mine"));
        }
    }

    #[test]
    fn d03_what_may_not_be_left_out_fails_only_where_the_peer_said_so() {
        let mut headers = failure("", &[("mine", 17_000)]);
        headers.insert("grpc-status", HeaderValue::from_static("0"));
        let error = fit(&mut headers, ANNOUNCED).expect_err("it is too large");
        assert_eq!(error.status().code(), tonic::Code::ResourceExhausted);
        let room = Room {
            all: None,
            ..ANNOUNCED
        };
        fit(&mut headers, room).expect("nothing was said");
        assert!(headers.contains_key("mine"));
    }

    #[test]
    fn d03_c_core_takes_half_for_sure() {
        let wire = Wire::default();
        let room = || Room::of(&wire, Protocol::Http2);
        assert_eq!((room().status, room().all), (STATUS_BYTES, None));
        let mut settings = Settings {
            headers_max: Some(16_384),
            ..Settings::default()
        };
        note(&wire, settings);
        assert_eq!((room().status, room().all), (16_384, Some(16_384)));
        settings.is_c_core = true;
        note(&wire, settings);
        assert_eq!((room().status, room().all), (8_192, Some(16_384)));
        note(&wire, Settings::default());
        assert_eq!(room().status, 8_192, "a frame without it changes nothing");
        settings.headers_max = Some(u32::MAX);
        note(&wire, settings);
        assert_eq!(room().status, STATUS_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn d03_a_cut_text_is_a_text(whole in ".{0,300}", most in 0_usize..400) {
            let headers = failure(&whole, &[]);
            let coded = headers.get(TEXT).map_or(&b""[..], HeaderValue::as_bytes);
            let cut = cut_text(coded, most);
            prop_assert!(cut.len() <= most || cut == coded);
            let mut headers = headers.clone();
            headers.insert(TEXT, HeaderValue::from_bytes(&cut).expect("a header"));
            let read = text(&headers);
            if let Some(begin) = read.strip_suffix("... (cut)").filter(|_| cut != coded) {
                prop_assert!(whole.starts_with(begin), "{begin:?}");
            } else {
                prop_assert!(read.is_empty() || read == whole, "{read:?}");
            }
        }

        #[test]
        fn d03_any_bytes_can_be_cut(text in prop::collection::vec(any::<u8>(), 0..200), most in 0_usize..250) {
            let cut = cut_text(&text, most);
            prop_assert!(cut.len() <= most || cut == text);
        }
    }
}
