//! Values of other frameworks below a service's name: whatever they say besides, an address.
//!
//! | who writes it | the value |
//! |---|---|
//! | go-zero, and people | `host:port` |
//! | grpc-go (clientv3's `naming/endpoints`) | `{"Op":0,"Addr":"host:port","Metadata":null}` |
//! | Kitex (`registry-etcd`) | `{"network":"tcp","address":"host:port","weight":10}` |
//! | Kratos | `{"id":"…","endpoints":["grpc://host:port","http://host:port"]}` |
//!
//! A value that names one address which can be dialled in clear text is an instance; any other says
//! what is wrong with it.

use std::collections::BTreeSet;

use lameduck_core::limits;
use lameduck_core::name::Address;
use serde_json::{Map, Value};

use super::gozero::{self, BadValue, plain, shorten};

/// The address that a value holds, whoever wrote it.
///
/// # Errors
///
/// Where it names no address, several, one that nobody can dial, or one that wants TLS.
pub fn address(value: &[u8]) -> Result<Address, BadValue> {
    let json = gozero::text(value, limits::RECORD_BYTES_MAX)
        .ok()
        .filter(|text| text.starts_with('{'));
    let Some(text) = json else {
        return gozero::address(value);
    };
    let refuse = |why: String| BadValue {
        value: shorten(value),
        why,
    };
    let object: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| refuse(format!("neither host:port nor JSON: {error}")))?;
    in_object(&object).map_err(refuse)
}

fn in_object(object: &Map<String, Value>) -> Result<Address, String> {
    // What grpc-go's naming wrote before it deleted keys.
    if object.get("Op").and_then(Value::as_i64) == Some(1) {
        return Err("\"Op\" 1 says that it was deleted".to_owned());
    }
    let network = object.get("network").and_then(Value::as_str);
    if let Some(network) = network.filter(|network| !network.starts_with("tcp")) {
        return Err(format!("network {network:?} is not tcp"));
    }
    let mut found = BTreeSet::new();
    for field in ["Addr", "address"] {
        match object.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                found.insert(plain(text.trim()).map_err(|why| format!("{field:?}: {why}"))?);
            }
            Some(_) => return Err(format!("{field:?} is no text")),
        }
    }
    if let Some(endpoints) = object.get("endpoints") {
        found.extend(in_endpoints(endpoints)?);
    }
    let first = found.pop_first();
    let first = first.ok_or("JSON without \"Addr\", \"address\" or \"endpoints\"")?;
    match found.pop_first() {
        None => Ok(first),
        Some(other) => Err(format!(
            "it names {first} and {other}: one value is one instance"
        )),
    }
}

/// The addresses in a list of URLs that speak gRPC in clear text.
fn in_endpoints(endpoints: &Value) -> Result<Vec<Address>, String> {
    let none = "\"endpoints\" names no grpc://host:port";
    let urls = endpoints.as_array().ok_or(none)?;
    let urls = urls.iter().filter_map(Value::as_str);
    let grpc: Vec<&str> = urls
        .filter_map(|url| url.trim().strip_prefix("grpc://"))
        .collect();
    if grpc.is_empty() {
        return Err(none.to_owned());
    }
    let mut found = Vec::new();
    for url in grpc {
        let (rest, query) = url.split_once('?').unwrap_or((url, ""));
        if query.split('&').any(|pair| pair == "isSecure=true") {
            return Err(format!("grpc://{rest} wants TLS, which is not supported"));
        }
        found.push(
            plain(rest.trim_end_matches('/')).map_err(|why| format!("\"endpoints\": {why}"))?,
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Result<&str, &str>) {
        match (address(value.as_bytes()), expected) {
            (Ok(address), Ok(text)) => assert_eq!(address.to_string(), text, "{value}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (got, _) => panic!("{value}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn d08_values_of_other_frameworks_are_instances_where_they_can_be() {
        check("10.0.0.1:80", Ok("10.0.0.1:80"));
        check(
            r#"{"Op":0,"Addr":"localhost:50054","Metadata":null}"#,
            Ok("localhost:50054"),
        );
        check(
            r#"{"network":"tcp","address":"10.0.0.1:8888","weight":10,"tags":null}"#,
            Ok("10.0.0.1:8888"),
        );
        check(
            r#"{"id":"7c9f","name":"helloworld","version":"","metadata":{},
                "endpoints":["http://10.0.0.1:8000","grpc://10.0.0.1:9000?isSecure=false"]}"#,
            Ok("10.0.0.1:9000"),
        );
        check("\u{feff} {\"Addr\":\" [::1]:80 \"}\n", Ok("[::1]:80"));
        check(r#"{"Addr":"h:1","address":"H.:1"}"#, Ok("h:1"));
        check(r#"{"Addr":null,"address":"h:1"}"#, Ok("h:1"));
    }

    #[test]
    fn d08_what_is_none_says_why() {
        check(r#"{"Addr":"h:1","address":"h:2"}"#, Err("h:1 and h:2"));
        check(r#"{"Op":1,"Addr":"h:1"}"#, Err("deleted"));
        check(r#"{"Addr":7}"#, Err("no text"));
        check(r#"{"Addr":"grpc://h:1"}"#, Err("\"Addr\": "));
        check(r#"{"network":"unix","address":"/run/x.sock"}"#, Err("unix"));
        check(r#"{"address":"0.0.0.0:80"}"#, Err("wildcard"));
        check(r#"{"endpoints":["http://h:1"]}"#, Err("no grpc://"));
        check(r#"{"endpoints":"grpc://h:1"}"#, Err("no grpc://"));
        check(r#"{"endpoints":["grpc://h:1?isSecure=true"]}"#, Err("TLS"));
        check(
            r#"{"endpoints":["grpc://h:1","grpc://h:2"]}"#,
            Err("h:1 and h:2"),
        );
        check("{}", Err("without \"Addr\""));
        check("{\"Addr\":", Err("neither host:port nor JSON"));
        check("\"h:1\"", Err("port"));
        check("[\"h:1\"]", Err("port"));
        check(
            &format!("{{\"Addr\":\"h:1\",\"x\":\"{}\"}}", "x".repeat(5_000)),
            Err("bytes"),
        );
    }
}
