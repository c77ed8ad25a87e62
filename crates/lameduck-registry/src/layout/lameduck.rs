//! Our own records: `_lameduck/v1/instance/<service>/<decimal lease id>` holds one JSON object.
//!
//! They hang on the same lease as the foreign key beside them. No leading slash, since a go-zero
//! client without a key watches `/`; the service is percent-encoded, so that no name lies within
//! another. Fields that are not known are ignored, and a field never changes its meaning.

use std::collections::BTreeMap;
use std::fmt;

use lameduck_core::instance::{Incarnation, Instance, Life, State};
use lameduck_core::limits;
use lameduck_core::name::{Address, ServiceName, percent};
use serde::{Deserialize, Serialize};

use super::gozero::{decimal, dialable, shorten};

const ROOT: &str = "_lameduck/v1/instance/";
const SERVING: &str = "serving";
const CLOSING: &str = "closing";
/// The version of the record's form.
const VERSION: u64 = 1;

/// The key of our record of `service` under `lease`.
#[must_use]
pub fn key(service: &ServiceName, lease: i64) -> String {
    format!("{}{lease}", prefix(service))
}

/// What every record of `service` begins with.
#[must_use]
pub fn prefix(service: &ServiceName) -> String {
    format!("{ROOT}{}/", percent::encode(service.as_str()))
}

/// The lease in a key, where it is the key of a record of `service`.
#[must_use]
pub fn lease(service: &ServiceName, key: &[u8]) -> Option<i64> {
    let rest = key.strip_prefix(prefix(service).as_bytes())?;
    decimal(std::str::from_utf8(rest).ok()?)
}

/// One record as it is written. The order of the fields is the order of the bytes.
#[derive(Serialize, Deserialize)]
struct Record {
    v: u64,
    address: String,
    life: WireLife,
    #[serde(default)]
    state: String,
    #[serde(default = "yes")]
    ready: bool,
    #[serde(default = "usual_weight")]
    weight: u32,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    protocols: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct WireLife {
    boot: String,
    epoch: u32,
}

const fn yes() -> bool {
    true
}

const fn usual_weight() -> u32 {
    100
}

/// A record that cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// More bytes than a record may have.
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// The instance is not one of ours: only a life can have a record.
    Foreign,
    /// It is not what a record of this version must be.
    Malformed {
        /// The record's first bytes, escaped.
        value: String,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes } => write!(
                f,
                "the record has {bytes} bytes, at most {} are allowed: shorten labels",
                limits::RECORD_BYTES_MAX
            ),
            Self::Foreign => f.write_str("only an instance that knows its life has a record"),
            Self::Malformed { value, why } => write!(f, "record \"{value}\": {why}"),
        }
    }
}

impl std::error::Error for RecordError {}

/// The record of `instance`.
///
/// # Errors
///
/// Where the instance has no life, or its metadata are too large.
pub fn encode(instance: &Instance) -> Result<Vec<u8>, RecordError> {
    let Incarnation::Life(life) = instance.incarnation else {
        return Err(RecordError::Foreign);
    };
    let record = Record {
        v: VERSION,
        address: instance.address.to_string(),
        life: WireLife {
            boot: life.boot.to_string(),
            epoch: life.epoch,
        },
        state: match instance.state {
            State::Serving => SERVING.to_owned(),
            State::Closing => CLOSING.to_owned(),
        },
        ready: instance.ready,
        weight: instance.weight,
        zone: instance.zone.clone(),
        version: instance.version.clone(),
        labels: instance.labels.clone(),
        protocols: instance.protocols.clone(),
    };
    let bytes = serde_json::to_vec(&record).expect("plain fields and text keys are JSON");
    if bytes.len() > limits::RECORD_BYTES_MAX {
        return Err(RecordError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// The instance that a record describes.
///
/// # Errors
///
/// Where it is too large, no record of this version, or names no address that can be dialled.
pub fn decode(value: &[u8]) -> Result<Instance, RecordError> {
    if value.len() > limits::RECORD_BYTES_MAX {
        return Err(RecordError::TooLarge { bytes: value.len() });
    }
    let refuse = |why: String| RecordError::Malformed {
        value: shorten(value),
        why,
    };
    let record: Record =
        serde_json::from_slice(value).map_err(|error| refuse(error.to_string()))?;
    if record.v != VERSION {
        return Err(refuse(format!(
            "version {} in the place of {VERSION}",
            record.v
        )));
    }
    let address: Address = record
        .address
        .parse()
        .map_err(|error| refuse(format!("{error}")))?;
    dialable(&address).map_err(|why| refuse(why.to_owned()))?;
    let boot = record.life.boot.parse();
    let life = Life {
        boot: boot.map_err(|error| refuse(format!("{error}")))?,
        epoch: record.life.epoch,
    };
    Ok(Instance {
        address,
        incarnation: Incarnation::Life(life),
        state: if record.state == CLOSING {
            State::Closing
        } else {
            State::Serving
        },
        ready: record.ready,
        weight: record.weight,
        zone: record.zone,
        version: record.version,
        labels: record.labels,
        protocols: record.protocols,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;
    use proptest::prelude::*;

    const GOLDEN: &str = concat!(
        r#"{"v":1,"address":"10.0.0.1:8080","#,
        r#""life":{"boot":"0123456789abcdef0123456789abcdef","epoch":0},"#,
        r#""state":"serving","ready":true,"weight":100,"zone":"","version":"","#,
        r#""labels":{},"protocols":["grpc"]}"#
    );

    fn instance() -> Instance {
        let boot = BootId::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let address = "10.0.0.1:8080".parse().expect("an address");
        let mut instance = Instance::new(address, Incarnation::Life(Life::first(boot)));
        instance.protocols.push("grpc".to_owned());
        instance
    }

    #[test]
    fn records_are_golden_to_the_byte() {
        let bytes = encode(&instance()).expect("it fits");
        assert_eq!(std::str::from_utf8(&bytes), Ok(GOLDEN));
        assert_eq!(decode(&bytes), Ok(instance()));
        let closing = Instance {
            state: State::Closing,
            ..instance()
        };
        let bytes = encode(&closing).expect("it fits");
        let text = GOLDEN.replace("\"serving\"", "\"closing\"");
        assert_eq!(std::str::from_utf8(&bytes), Ok(text.as_str()));
        assert_eq!(decode(&bytes), Ok(closing));
    }

    #[test]
    fn keys_are_golden_and_never_nested() {
        let key = |name: &str| key(&name.parse().expect("a service name"), 77);
        assert_eq!(key("orders"), "_lameduck/v1/instance/orders/77");
        assert_eq!(key("a/b"), "_lameduck/v1/instance/a%2Fb/77");
        assert_eq!(key("a%2Fb"), "_lameduck/v1/instance/a%252Fb/77");
        let orders = "orders".parse().expect("a service name");
        let read = |key: &str| lease(&orders, key.as_bytes());
        assert_eq!(read("_lameduck/v1/instance/orders/77"), Some(77));
        assert_eq!(read("_lameduck/v1/instance/orders2/77"), None);
        assert_eq!(read("_lameduck/v1/instance/orders/7/7"), None);
        assert_eq!(key("a.B_c-9"), "_lameduck/v1/instance/a.B_c-9/77");
        assert_eq!(key("ä:~"), "_lameduck/v1/instance/%C3%A4%3A%7E/77");
        assert!("_lameduck/v1".parse::<ServiceName>().is_err());
    }

    #[test]
    fn unknown_fields_and_states_are_ignored_and_missing_ones_usual() {
        let text = r#"{"v":1,"new":[1,{}],"address":"10.0.0.1:8080","state":"dozing",
            "life":{"boot":"0123456789abcdef0123456789abcdef","epoch":0,"more":1},"protocols":["grpc"]}"#;
        assert_eq!(decode(text.as_bytes()), Ok(instance()));
    }

    #[track_caller]
    fn check_refused(from: &str, to: &str, part: &str) {
        let text = GOLDEN.replacen(from, to, 1);
        assert_ne!(text, GOLDEN);
        let error = decode(text.as_bytes()).expect_err("refused");
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn malformed_records_say_why() {
        check_refused("\"v\":1", "\"v\":2", "version 2");
        check_refused("\"v\":1,", "", "missing field `v`");
        check_refused("10.0.0.1:8080", "10.0.0.1", "no port");
        check_refused("10.0.0.1:8080", "0.0.0.0:80", "wildcard");
        check_refused("10.0.0.1:8080", "10.0.0.1:0", "port 0");
        check_refused("0123", "xyz", "is no life");
        check_refused("100", "-1", "invalid value");
        check_refused("{\"v\"", "[\"v\"", "record");
        let large = vec![b' '; limits::RECORD_BYTES_MAX + 1];
        assert_eq!(decode(&large), Err(RecordError::TooLarge { bytes: 4097 }));
    }

    #[test]
    fn what_is_too_large_or_foreign_is_not_written() {
        let mut large = instance();
        large.zone = "z".repeat(limits::RECORD_BYTES_MAX);
        assert!(matches!(
            encode(&large),
            Err(RecordError::TooLarge { bytes }) if bytes > limits::RECORD_BYTES_MAX
        ));
        let foreign = Instance::new(large.address, Incarnation::Lease(7));
        assert_eq!(encode(&foreign), Err(RecordError::Foreign));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            boot: u128, epoch: u32, closing: bool, ready: bool, weight: u32,
            zone in ".{0,40}", version in ".{0,20}",
            labels in prop::collection::btree_map(".{0,10}", ".{0,20}", 0..8),
            protocols in prop::collection::vec("[a-z]{1,8}", 0..4),
        ) {
            let life = Life { boot: BootId::from_bits(boot), epoch };
            let written = Instance {
                incarnation: Incarnation::Life(life),
                state: if closing { State::Closing } else { State::Serving },
                ready, weight, zone, version, labels, protocols,
                ..instance()
            };
            match encode(&written) {
                Ok(bytes) => prop_assert_eq!(decode(&bytes), Ok(written)),
                Err(error) => {
                    let too_large = matches!(error, RecordError::TooLarge { .. });
                    prop_assert!(too_large);
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let _ = crate::layout::gozero::address(&bytes);
        }
    }
}
