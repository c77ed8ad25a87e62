use super::*;
use lameduck_etcd_proto::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::Code;

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

#[tokio::test]
async fn an_abandoned_connection_is_replaced_by_one_to_the_next_host() {
    let (_first, one) = listener().await;
    let (_second, two) = listener().await;
    let pool = Pool::new(vec![one.into(), two.into()], 2);
    let first = pool.connection().await.expect("connected");
    assert_eq!((first.host, first.generation), (0, 1));
    pool.abandon(7);
    assert_eq!(pool.connection().await.expect("the same").generation, 1);
    pool.abandon(1);
    let second = pool.connection().await.expect("connected");
    assert_eq!((second.host, second.generation), (1, 2));
}

#[tokio::test]
async fn r9_an_abandoned_address_of_a_name_is_left_for_another() {
    let ((_first, one), (_second, two)) = (listener().await, listener().await);
    let lookup: Lookup = Arc::new(move |_, _| Box::pin(async move { Ok(vec![one, two]) }));
    let name = "etcd:2379".parse().expect("an address");
    let pool = Pool::looked_up_by(lookup, vec![name], 0);
    let mut addresses = Vec::new();
    for generation in 1..=3 {
        addresses.push(pool.connection().await.expect("connected").address);
        assert!(pool.has_choice());
        pool.abandon(generation);
    }
    assert_eq!(addresses, [one, two, one]);
}

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const PING: u8 = 6;

/// A frame without flags but these.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Serves HTTP/2 by hand: tells the number of each stream that begins, answers the first with a head
/// alone, all others with nothing, and ends with the connection.
async fn silent_server(mut socket: TcpStream, begun: mpsc::UnboundedSender<u32>) {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).await.expect("a preface");
    let settings = frame(SETTINGS, 0, 0, &[]);
    socket.write_all(&settings).await.expect("sent");
    let mut head = [0; 9];
    // Its end may also be a reset, where something of ours was still unread.
    while socket.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        socket
            .read_exact(&mut payload)
            .await
            .expect("a whole frame");
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match head[3] {
            HEADERS => {
                if stream == 1 {
                    // `:status: 200`, by its number in the table of HPACK.
                    let answer = frame(HEADERS, 4, stream, &[0x88]);
                    socket.write_all(&answer).await.expect("sent");
                }
                begun.send(stream).expect("the test waits");
            }
            PING => panic!("the connection is still looked after"),
            _ => {}
        }
    }
}

/// The server sees the end at once, not when its PING has gone unanswered.
#[tokio::test]
async fn r18_abandoning_ends_the_connection_and_all_that_is_on_it() {
    let (listener, address) = listener().await;
    let (begun, mut streams) = mpsc::unbounded_channel();
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.expect("a client");
        silent_server(socket, begun).await;
    });
    let pool = Arc::new(Pool::new(vec![address.into()], 0));
    let transport = || Transport::new(pool.clone(), None, Used::default());
    // One that has its head and waits for events, with a body that does not end either.
    let mut watches = WatchClient::new(transport());
    let requests = futures_util::stream::pending::<pb::WatchRequest>();
    let answer = watches.watch(requests).await.expect("a head");
    let mut events = answer.into_inner();
    // Some that wait for their head.
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut kv = KvClient::new(transport());
        waiting.push(tokio::spawn(async move {
            kv.range(pb::RangeRequest::default()).await
        }));
    }
    for _ in 0..4 {
        streams.recv().await.expect("it begins");
    }
    pool.abandon(1);
    let ended = events.message().await.expect_err("it is cut");
    assert!(
        matches!(ended.code(), Code::Unavailable | Code::Unknown),
        "{ended:?}"
    );
    for call in waiting {
        let failed = call.await.expect("no panic").expect_err("it is cut");
        assert_eq!(failed.code(), Code::Unavailable, "{failed:?}");
    }
    server.await.expect("it has seen the end");
}
