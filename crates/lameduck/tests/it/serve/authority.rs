//! Callers that send a list of hosts, or something else that is no host, as `:authority`.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use lameduck::Provider;
use lameduck::core::event::Event;
use lameduck::core::limits::FINAL_GOAWAY_MAX;
use lameduck::env::Environment;
use tokio::io::AsyncWriteExt;

use super::client::{Client, PING, code, last_stream};
use super::start::{start, within};
use crate::raw::{END_STREAM, Frame, GOAWAY, HEADERS, LAST_STREAM_MAX, RST_STREAM};
use crate::standing::Standing;

const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
const GET: u8 = 0x82;
const SCHEME_HTTP: u8 = 0x86;
const PATH: u8 = 0x84;
/// `:authority` as the name of a literal, kept in the table, by its static index.
const AUTHORITY_KEPT: u8 = 0x41;

/// The lists that are seen in the field, one of them coded by Huffman's code.
const LIST: &[u8] = b"127.0.0.1:2379,127.0.0.1:2380";
const LIST_SEEN: &str = "127.0.0.1B2379X127.0.0.1B2380";

/// Answers with the authority that it sees, and with all of the header `probe`.
fn echo() -> Router {
    Router::new().route(
        "/",
        get(|request: Request| async move {
            let probe = request.headers().get_all("probe").iter().next();
            let probe = probe.map(|value| value.to_str().expect("ASCII").to_owned());
            format!(
                "{} {}",
                request.uri().authority().map_or("none", |it| it.as_str()),
                probe.unwrap_or_default()
            )
        }),
    )
}

/// A text of a literal, not coded.
fn plain(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(text.len()).expect("short")];
    bytes.extend(text);
    bytes
}

/// A request's block with a field for the authority.
fn block(authority: &[u8]) -> Vec<u8> {
    [&[GET, SCHEME_HTTP, PATH], authority].concat()
}

async fn ask(client: &mut Client, stream: u32, block: &[u8]) -> String {
    let flags = END_HEADERS | END_STREAM;
    client.send(HEADERS, flags, stream, block).await;
    String::from_utf8(client.answer(stream).await).expect("ASCII")
}

#[tokio::test]
async fn d37_a_list_of_hosts_is_served_in_every_form_of_a_literal() {
    let server = start(echo());
    let mut client = Client::connect(server.address).await;
    let name = plain(b":authority");
    let huffman_name = [0x88, 0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    let value = plain(LIST);
    // 127.0.0.1:2379,127.0.0.1:2380
    let huffman_value = [
        0x95, 0x08, 0x9d, 0x5c, 0x0b, 0x81, 0x70, 0xdc, 0x13, 0x2e, 0xbf, 0xf4, 0x11, 0x3a, 0xb8,
        0x17, 0x02, 0xe1, 0xb8, 0x26, 0x5e, 0x07,
    ];
    let fields: [(&str, Vec<u8>); 6] = [
        ("by index, kept", [&[AUTHORITY_KEPT][..], &value].concat()),
        ("by index, not kept", [&[0x01][..], &value].concat()),
        ("by index, never kept", [&[0x11][..], &value].concat()),
        ("a name", [&[0x00][..], &name, &value].concat()),
        (
            "a coded name",
            [&[0x40][..], &huffman_name, &value].concat(),
        ),
        ("a coded value", [&[0x41][..], &huffman_value].concat()),
    ];
    let mut stream = 1;
    for (what, field) in &fields {
        let seen = ask(&mut client, stream, &block(field)).await;
        assert_eq!(seen, format!("{LIST_SEEN} "), "{what}");
        stream += 2;
    }
    // The name by an index of the dynamic table, and the whole field by one.
    for field in [[&[0x0f, 62 - 15][..], &value].concat(), vec![0x80 | 62]] {
        let seen = ask(&mut client, stream, &block(&field)).await;
        assert_eq!(seen, format!("{LIST_SEEN} "));
        stream += 2;
    }
}

#[tokio::test]
async fn d37_all_that_stock_callers_send_is_served_and_hosts_are_left_alone() {
    let server = start(echo());
    let mut client = Client::connect(server.address).await;
    let mut stream = 1;
    for (sent, seen) in [
        // As they are.
        ("greeter", "greeter"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("user:secret@host:1", "user:secret@host:1"),
        ("a,b", "a,b"),
        ("a:1,b", "a:1,b"),
        // Kratos, grpcio with IPv6, go-zero with a group in its key, a path, a unix socket, blanks.
        ("a:1,b:2", "aB1XbB2"),
        ("[::1]:1,[::2]:2", "XBB1XB1XXBB2XB2"),
        ("grp%2Fsvc", "grpA2Fsvc"),
        ("h:1/svc", "hB1Asvc"),
        ("/run/a.sock", "ArunAa.sock"),
        ("a b", "aAb"),
        ("h:1:2", "hB1B2"),
        ("a@", "aX"),
        ("\u{e9}:1", "XXB1"),
        ("a\\b|c", "aXbXc"),
    ] {
        let field = [&[AUTHORITY_KEPT][..], &plain(sent.as_bytes())].concat();
        let answer = ask(&mut client, stream, &block(&field)).await;
        assert_eq!(answer, format!("{seen} "), "{sent}");
        stream += 2;
    }
}

#[tokio::test]
async fn d37_a_block_is_mended_however_it_is_framed_and_cut() {
    let server = start(echo());
    let mut client = Client::connect(server.address).await;
    let field = [&[AUTHORITY_KEPT][..], &plain(LIST)].concat();
    let mut all = block(&field);
    // Both a header before and after CONTINUATION carry what must not be touched.
    all.extend([&[0x00][..], &plain(b"probe"), &plain(b"a:1,b:2")].concat());
    let (first, rest) = all.split_at(12);
    let (second, third) = rest.split_at(15);
    let padded = [&[4, 0, 0, 0, 0, 9][..], first, b",,,,"].concat();
    let frames = [
        Frame::bytes(PING, 0, 0, b"a:1,b:2,"),
        Frame::bytes(HEADERS, PADDED | PRIORITY | END_STREAM, 1, &padded),
        Frame::bytes(CONTINUATION, 0, 1, second),
        Frame::bytes(CONTINUATION, END_HEADERS, 1, third),
    ]
    .concat();
    for byte in frames {
        client.socket.write_all(&[byte]).await.expect("it reads");
        tokio::task::yield_now().await;
    }
    let pong = client.frame_of(PING).await;
    assert_eq!(pong.payload, b"a:1,b:2,");
    let answer = client.answer(1).await;
    assert_eq!(answer, format!("{LIST_SEEN} a:1,b:2").as_bytes());
    // The table is in step still.
    let seen = ask(&mut client, 3, &block(&[0x80 | 62])).await;
    assert_eq!(seen, format!("{LIST_SEEN} "));
}

#[tokio::test]
async fn d37_an_empty_authority_is_none() {
    let server = start(echo());
    let mut client = Client::connect(server.address).await;
    // As grpc-go sends it for a target such as `fixed:///`: by the static table, the last of its kind.
    assert_eq!(ask(&mut client, 1, &block(&[0x81])).await, "none ");
}

#[tokio::test]
async fn d37_what_cannot_be_served_is_told_once_a_host() {
    let refused: Arc<Mutex<Vec<Event>>> = Arc::default();
    let notes = Arc::clone(&refused);
    let provider = Provider::builder("orders")
        .router(echo())
        .listen("127.0.0.1:0")
        .environment(Environment::default())
        .signals(false)
        .on_event(Arc::new(move |event: &Event| {
            if matches!(event, Event::AuthorityRefused { .. }) {
                notes.lock().expect("no panic").push(event.clone());
            }
        }))
        .build()
        .expect("it builds");
    let handle = provider.handle();
    let running = tokio::spawn(provider.run());
    within(handle.serving()).await;
    let mut client = Client::connect(handle.local_addr()).await;
    for stream in [1, 3] {
        let empty = block(&[AUTHORITY_KEPT, 0]);
        client
            .send(HEADERS, END_HEADERS | END_STREAM, stream, &empty)
            .await;
        let reset = client.frame_of(RST_STREAM).await;
        assert_eq!((reset.stream, code(&reset)), (stream, 1));
    }
    // The connection goes on.
    assert_eq!(ask(&mut client, 5, &block(&[0x01, 1, b'a'])).await, "a ");
    // Shown by the end of the run at the latest.
    handle.abort();
    within(running).await.expect("no panic");
    let events = refused.lock().expect("no panic").clone();
    let [Event::AuthorityRefused { remote, authority }] = &events[..] else {
        panic!("{events:?}");
    };
    let local = client.socket.local_addr().expect("it is connected");
    assert_eq!(remote.socket(), Some(local));
    assert_eq!(authority, "");
}

#[tokio::test]
async fn d37_a_pong_is_never_put_into_a_header_block() {
    let server = start(echo());
    let mut client = Client::connect(server.address).await;
    let all = block(&[&[AUTHORITY_KEPT][..], &plain(LIST)].concat());
    client.send(HEADERS, END_STREAM, 1, &all[..8]).await;
    let standing = Standing::begin();
    let control = server.control.clone();
    // Leaves, and the peer never answers the PING: the server does in its place.
    let told = tokio::spawn(async move { control.final_goaways(FINAL_GOAWAY_MAX).await });
    assert_eq!(last_stream(&client.frame_of(GOAWAY).await), LAST_STREAM_MAX);
    client.frame_of(PING).await;
    standing.advance(FINAL_GOAWAY_MAX).await;
    tokio::task::yield_now().await;
    client.send(CONTINUATION, END_HEADERS, 1, &all[8..]).await;
    // The whole block first, then the answer to the PING.
    let goaway = client.frame_of(GOAWAY).await;
    assert_eq!(last_stream(&goaway), 1);
    assert_eq!(goaway.payload[4..], [0; 4], "no error");
    within(told).await.expect("no panic");
    standing.end();
}
