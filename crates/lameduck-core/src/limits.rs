//! Every default and every bound, with its unit last in the name and its reason beside it.
//!
//! A number that users can see is a promise: change one here, and the changelog says so.

use core::time::Duration;

// --- leaving ------------------------------------------------------------------------------------

/// The one total time that a stop may take. Kubernetes grants 30 s; 25 s and the margin fit inside.
pub const STOP_BUDGET: Duration = Duration::from_secs(25);
/// The longest budget that can be set: times beyond it mean "as long as it takes", and this is longer
/// than any process runs.
pub const STOP_BUDGET_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// What is left of the budget for the visible cut, the hooks' end, the report and the exit itself.
pub const STOP_MARGIN: Duration = Duration::from_secs(1);
/// Closing takes at most this many hundredths of the budget: the rest belongs to what is in flight.
pub const CLOSING_CAP_PERCENT: u32 = 40;
/// The least time in Closing where the registry pushes its changes: a push takes milliseconds, this
/// leaves room for a client that was just reconnecting.
pub const FLOOR_PUSH: Duration = Duration::from_millis(500);
/// The least time in Closing with no registry at all, outside a cluster.
pub const FLOOR_NONE: Duration = Duration::from_millis(500);
/// The least time in Closing with no registry inside a cluster, whose proxies learn late.
pub const FLOOR_CLUSTER: Duration = Duration::from_secs(10);
/// No request admitted for this long means that callers have gone.
pub const QUIET_WINDOW: Duration = Duration::from_millis(500);
/// First GOAWAY no sooner than this after NOT_SERVING was pushed: the push must be acted on first,
/// so that even a caller that never places a call twice has moved before its connection ends.
pub const GOAWAY_DELAY: Duration = Duration::from_millis(100);
/// First GOAWAYs are paced over this part of the floor (a quarter, as Envoy does), so that callers
/// do not all redial in one instant.
pub const GOAWAY_PACE_DIVISOR: u32 = 4;
/// The final GOAWAY of a connection is forced after this long without the peer's PING answer.
pub const FINAL_GOAWAY_MAX: Duration = Duration::from_secs(1);
/// How long one hook may take, unless it is said otherwise, before it is left behind and named in the
/// report; less where the budget's rest, shared by the hooks that still wait, is less.
pub const HOOK_MAX: Duration = Duration::from_secs(5);
/// How long a registry that answers late is waited for at the end, while it has not failed: three round
/// trips of 1.2 s and what they need beside. A healthy one takes milliseconds, one that is known to
/// fail is waited for [`REVOKE_MAX`] at most.
pub const REVOKE_SLOW_MAX: Duration = Duration::from_secs(4);
/// How long the last lease revocation may take where there is no time, or the registry fails: the lease
/// ends by itself after its TTL.
pub const REVOKE_MAX: Duration = Duration::from_secs(1);
/// After the cut: how long connections may flush their resets before their tasks are dropped.
pub const CUT_FLUSH: Duration = Duration::from_millis(100);
/// While Closing, the gate's counter is read this often: what a stop may be late after the quiet
/// window where calls still came, for 40 reads of one number a second.
pub const QUIET_SAMPLE: Duration = Duration::from_millis(25);
/// Accepting what waits and closing the listener may take this long; it takes microseconds.
pub const LISTENER_CLOSE_MAX: Duration = Duration::from_secs(1);
/// A forced stop may take this long to flush its resets and to say goodbye to the registry; so may one
/// whose process was frozen past its budget, from when it goes on.
pub const ABORT_MAX: Duration = Duration::from_millis(250);
/// How long a stop waits for its last events to be shown, and then for its report line to be written,
/// where the log or stderr is blocked; each gets this much, and less where the budget has less left.
pub const FAREWELL_MAX: Duration = Duration::from_millis(500);
/// The same where the budget is used up: a healthy log takes microseconds. Both together are less than
/// what a stuck process is waited for.
pub const FAREWELL_MIN: Duration = Duration::from_millis(150);
/// Events of one provider or hub that wait for its observers and its log; further ones are lost and
/// counted. More than a directory of the largest service says at once, some 20 MB where all wait.
pub const EVENTS_WAITING_MAX: usize = 65_536;
/// Requests of a program to its own provider (hold, resume, stop) that wait for their answer at
/// once; each takes microseconds, so more are a loop gone wrong, and are refused.
pub const COMMANDS_MAX: usize = 64;

// --- a server's connections ---------------------------------------------------------------------

/// From accept to the first byte. Pools of connections that clients open in advance are silent until
/// their first request; axum and tonic set no bound. As long as [`HTTP1_IDLE_MAX`], and for its reason.
pub const FIRST_BYTE_MAX: Duration = HTTP1_IDLE_MAX;
/// The same where slots run short (more than half of the connections are open): a TCP probe or a port
/// scanner that says nothing frees its slot. Also the bound of the development server.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// From the first byte to the first whole frame or request head. A large head (60 kB of cookies) on a
/// link of 10 kbit/s takes 48 s; a peer that sends one byte at a time must not hold a slot for ever.
pub const FIRST_HEAD_MAX: Duration = Duration::from_secs(60);
/// The same once the server is draining.
pub const HANDSHAKE_DRAINING_MAX: Duration = Duration::from_secs(1);
/// Draining: how long an idle HTTP/1.1 connection is kept for a request that may be on its way.
/// Longer than a round trip between continents.
pub const HTTP1_LINGER: Duration = Duration::from_millis(250);
/// Bytes read and thrown away after a half-close, so that a client still uploading sees the answer.
pub const LINGER_BYTES: usize = 8 << 20;
/// The longest such reading.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
/// The same where nothing unread is known of: an orderly peer answers a FIN within a round trip,
/// and nothing of value hangs on it.
pub const LINGER_CLEAN_MAX: Duration = Duration::from_millis(100);
/// How soon, and later how often, a closing connection looks whether its peer has all bytes. The kernel
/// tells nobody when its send queue is empty. A stop ends this much later than it could.
pub const LINGER_LOOK_MIN: Duration = Duration::from_millis(5);
/// See [`LINGER_LOOK_MIN`].
pub const LINGER_LOOK_MAX: Duration = Duration::from_millis(50);
/// A peer that acknowledges not one byte for this long while a connection closes is given up. Links lose
/// contact for seconds, and a reader may pause; a stop has its own end before.
pub const LINGER_STALLED_MAX: Duration = Duration::from_secs(60);
/// Body bytes read before a request is refused: HTTP/2 peers die of unread small DATA frames.
pub const REFUSE_READ_BYTES: usize = 64 << 10;
/// The longest such reading.
pub const REFUSE_READ_MAX: Duration = Duration::from_secs(1);
/// Waiting connections in the kernel's accept queue: std's 128 overflow at 500 connects a second.
pub const LISTEN_BACKLOG: i32 = 1024;
/// Streams that one HTTP/2 client may have open on one connection.
pub const SERVER_STREAMS_MAX: u32 = 256;
/// Streams of one HTTP/2 connection that may be reset for the peer's fault before the connection ends:
/// the guard against floods of resets. Bodies are read before a refusal, so refusals do not count.
pub const SERVER_RESETS_MAX: usize = 1024;
/// Streams of one HTTP/2 connection that its peer gave up before the server had looked at them. h2's
/// 20 end the connection where a server that was frozen goes on: all calls that ran into their
/// deadline meanwhile come with their resets in one read.
pub const SERVER_GIVEN_UP_MAX: usize = 1024;
/// Calls of one HTTP/2 connection that its peer gives up before their answers begin, beyond those that
/// are answered: so many at once, and as many a second. One wave of deadlines on a frozen server is
/// below it (see [`SERVER_GIVEN_UP_MAX`]), a client that sends two hedges for each answer too; a flood of
/// resets is 16,000 a second and more on one core. hyper has no such bound.
pub const RAPID_RESETS_MAX: u32 = 1024;
/// Only calls that lived for less than this count there: at the bound of streams, one connection can
/// start no more than 2,560 a second that live for longer, which an honest client may do as well.
pub const RAPID_RESET_MAX: Duration = Duration::from_millis(100);
/// A connection with so many more resets than answers gets each handler started one turn later, so that a
/// reset that came in the same read is seen before. As many as h2 lets wait by default.
pub const RESETS_SUSPECT: u32 = 20;
/// Connections open at once; further ones wait in the kernel's queue. Far below usual
/// descriptor limits (1,024 soft on old systems is raised by every service manager). A listener that
/// closes takes what waits there, twice [`LISTEN_BACKLOG`] at most, beyond it: nobody else would.
pub const CONNECTIONS_MAX: usize = 20_000;
/// Pause after an accept that failed for want of descriptors or memory: the next one would fail too.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Accepting counts as resumed once it has gone on for this long: each connection that ends frees one
/// descriptor for a moment, and nobody wants two lines about each.
pub const ACCEPT_SETTLED: Duration = Duration::from_secs(1);
/// Closing the listener waits this long for descriptors, where connections wait that cannot be taken:
/// requests that just end free some. Half of what closing the listener may take.
pub const ACCEPT_LAST_MAX: Duration = Duration::from_millis(500);
/// HTTP/2 keep-alive PING, and TCP keep-alive probe, after this long without a byte: frees peers that
/// died silently, and on HTTP/1.1 those that hung up while their handler worked.
pub const SERVER_PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long the answer to such a PING may take; probes follow each other after this long.
pub const SERVER_PING_MAX: Duration = Duration::from_secs(10);
/// HTTP/1.1: from one request's end to the next one's head. A server must keep an idle connection for
/// longer than the balancer before it, or requests are lost in the race. The longest common time of a
/// balancer is 600 s (Google's), for which its documentation recommends 620 s on servers. An idle
/// connection costs a descriptor and a few kB; a peer that is gone is found by keep-alive probes.
pub const HTTP1_IDLE_MAX: Duration = Duration::from_secs(620);
/// Services in one answer of the health service's List; more are RESOURCE_EXHAUSTED, as its
/// protocol says.
pub const HEALTH_LIST_MAX: usize = 100;
/// Largest header list that the development server accepts, in bytes.
pub const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Bytes of a header block in HTTP/2 that are held until it is whole, so that its `:authority` can be
/// mended. Twice [`HTTP2_HEAD_BYTES_MAX`]; a larger block passes as it is, and is
/// refused.
pub const HEADERS_HELD_BYTES_MAX: usize = 128 << 10;
/// Hosts of which a server says one thing, once each: a client that is set up wrong runs on a few hosts
/// or on all of them, and 20 lines tell which.
pub const PEERS_TOLD_MAX: usize = 20;
/// Hosts that a closing server remembers to have told to go: each entry is an address of 17 bytes. Requests
/// of hosts beyond these keep Closing from being quiet, up to its cap.
pub const FAREWELL_HOSTS_MAX: usize = 4_096;
/// HTTP/1.1: bytes of a request's head. hyper's own bound, and so axum's: browsers send cookies of some
/// ten kB, and whoever moves here must not get 431 for what was served before.
pub const HTTP1_HEAD_BYTES_MAX: usize = 408 << 10;
/// HTTP/1.1: headers of a request. hyper's own bound, and so axum's; each costs a slot of a table.
pub const HTTP1_HEADERS_MAX: usize = 100;
/// HTTP/2: bytes of a request's header list. The 16 KiB of axum and tonic refuse the cookies that the
/// same browsers may send by HTTP/1.1; 256 streams with heads of this size hold 16 MiB.
pub const HTTP2_HEAD_BYTES_MAX: u32 = 64 << 10;
/// HTTP/2: bytes of the header list that a failed gRPC call's head or trailers are cut to where the peer has
/// announced no limit. Stacks with small limits announce them (grpc-java 8 KiB, grpcio, tonic and Swift's
/// 16 KiB, .NET 64 KiB); those that do not take 16 MiB (grpc-go), 64 KiB of one header (nghttp2, and so
/// Node and curl, which end the whole connection beyond), or 60 KiB (Envoy).
pub const STATUS_BYTES: usize = 48 << 10;
/// The same whatever more the peer has announced: no other frame may come between the parts of a header
/// block, so a longer one keeps all calls of the connection waiting.
pub const STATUS_BYTES_MAX: usize = 1 << 20;
/// The same on HTTP/1.1 (gRPC-web), where nobody announces anything: nginx takes one page of 4 KiB.
pub const HTTP1_STATUS_BYTES: usize = 4 << 10;
/// Bytes of a status text for which its details are left out, and its metadata where the peer does not take
/// both: enough for a sentence and an identifier to look for.
pub const STATUS_TEXT_BYTES_MIN: usize = 512;
/// HTTP/2 receive window per stream, in bytes; also that of the registry's client for its connection.
pub const WINDOW_BYTES: u32 = 1 << 20;
/// HTTP/2 receive window of a server's connection, in bytes: eight times a stream's. With equal windows
/// one upload that its handler does not read stops every other stream of the connection. h2 also takes
/// half of it for the budget of small unread frames, which is 16,000 messages of 27 bytes then.
pub const SERVER_CONNECTION_WINDOW_BYTES: u32 = 8 * WINDOW_BYTES;
/// Largest HTTP/2 frame that a peer may send, in bytes: the least that RFC 9113 allows, and what all
/// stock servers use; larger ones keep short answers waiting behind them.
pub const SERVER_FRAME_BYTES_MAX: u32 = 16 << 10;

/// Bytes of one answer that a connection holds for a peer that does not read, beyond the piece that
/// the handler gave last. hyper's 400 KiB let one such peer hold 136 MB by its 256 streams, this holds
/// 23 MB; below it, every small piece wakes its handler for itself. Measured from 16 to 400 KiB, the
/// processor time of 64 MiB on one stream, of 1 MiB on each of 64, and of small answers is the same.
pub const SEND_BYTES_MAX: usize = 64 << 10;

// --- registries ---------------------------------------------------------------------------------

/// Lease TTL asked for; what is granted is read back.
pub const LEASE_TTL: Duration = Duration::from_secs(10);
/// A lease is renewed after TTL divided by this.
pub const LEASE_RENEW_DIVISOR: u32 = 3;
/// Services that one transaction publishes, two keys each: well within the 128 operations that etcd
/// takes.
pub const SERVICES_PER_TRANSACTION: usize = 32;
/// Largest instance record, in bytes.
pub const RECORD_BYTES_MAX: usize = 4 << 10;
/// Changes of a published record: at most one in this time.
pub const REPUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// A go-zero key is taken for foreign this long after it appeared without a record of ours.
pub const FOREIGN_AFTER: Duration = Duration::from_millis(100);
/// First and last pause between attempts to reach a registry.
pub const REGISTRY_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(10));
/// One request to a registry, except watches and keep-alives.
pub const REGISTRY_CALL_MAX: Duration = Duration::from_secs(3);
/// One login at a registry. etcd spends tens of milliseconds of a core on each, one after the other: a
/// fleet that starts at once waits for its turn.
pub const LOGIN_MAX: Duration = Duration::from_secs(10);
/// A token that is refused sooner than this after its login counts as a login that failed.
pub const LOGIN_PACE: Duration = Duration::from_secs(1);
/// First and last pause between logins of a user whose watch is denied. etcd before 3.4.22 says that
/// of a lost token, too; but where it is meant, a login for each attempt would only be a load.
pub const LOGIN_DOUBT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// From connect to an open connection to one of a registry's hosts.
pub const REGISTRY_DIAL_MAX: Duration = Duration::from_secs(2);
/// The next host is tried beside one that has not answered for this long: one dead host of two must
/// cost less than anybody notices.
pub const REGISTRY_DIAL_STAGGER: Duration = Duration::from_millis(200);
/// HTTP/2 PING to a registry after this long without a byte while a watch is open. etcd takes
/// pings closer than 5 s for abuse.
pub const REGISTRY_PING_INTERVAL: Duration = Duration::from_secs(6);
/// How long the answer to such a PING may take.
pub const REGISTRY_PING_MAX: Duration = Duration::from_secs(3);
/// Watches on one stream to etcd. One stream for all would do for etcd; this many end together where
/// one stream is cut.
pub const STREAM_WATCHES_MAX: usize = 500;
/// Answers that wait for the reader of one watch. A reader that is further behind loses the watch, and
/// begins anew after what it has read; the others on its stream go on.
pub const WATCH_QUEUE_MAX: usize = 256;
/// Largest answer of a registry, in bytes; lists ask for smaller pages where one is larger.
pub const REGISTRY_ANSWER_BYTES_MAX: usize = 16 << 20;
/// Keys that a list asks for at once: 1,000 records of usual size are a few hundred KiB.
pub const LIST_PAGE: u32 = 1_000;
/// A mirror lists anew after three quarters of this to all of it, drawn each time, whatever the watch
/// says: etcd 3.4 has lost events.
pub const MIRROR_CHECK: Duration = Duration::from_secs(300);
/// A watch that has stood for this long proves its registry well: the next break is retried at once.
pub const WATCH_SETTLED: Duration = Duration::from_secs(1);
/// Instances of one service that a mirror takes; further ones are counted and left out.
pub const INSTANCES_MAX: usize = 20_000;
/// Values that are no instances, told of by one subscription; further ones are only counted. Enough to
/// see what they have in common; a program that writes nonsense must not fill the callers' logs.
pub const SKIPPED_TOLD_MAX: usize = 20;
/// For each thousand instances of a service, how long a view with more to choose from may wait after
/// the last one was published. A view is as long as the list: published for each of 20,000
/// connections that come up, it would cost minutes. What takes an instance away never waits.
pub const PUBLISH_PACE: Duration = Duration::from_millis(1);
/// Watchers, leases and keys of one development server or memory registry.
pub const STORE_ITEMS_MAX: usize = 100_000;
/// Changes that the store remembers for watches that start in the past; older ones are compacted.
pub const STORE_HISTORY_MAX: usize = 10_000;
/// Bytes of all keys and values of a store: far above any registry's, far below a machine's memory.
pub const STORE_BYTES_MAX: usize = 256 << 20;
/// Bytes of the changes that a store remembers.
pub const STORE_HISTORY_BYTES_MAX: usize = 64 << 20;
/// Conditions or steps of one branch of a transaction, as etcd has it by default.
pub const STORE_TXN_OPS_MAX: usize = 128;
/// The same with all transactions within: bounds the search for keys that are written twice.
pub const STORE_TXN_OPS_TOTAL_MAX: usize = 1024;
/// Bytes of one write request, as etcd has it by default (1.5 MiB).
pub const STORE_REQUEST_BYTES_MAX: usize = 3 << 19;
/// Bytes of changes handed to a watcher at once; one revision is never split, so it may be more.
pub const STORE_READ_BYTES_MAX: usize = 1 << 20;
/// Changes handed to a watcher at once, likewise.
pub const STORE_READ_MAX: usize = 1_000;
/// Connections of the development server; further ones wait in the kernel's queue.
pub const DEV_CONNECTIONS_MAX: usize = 1_024;
/// Streams of one of its connections: etcd sets no bound, Go's clients use one for all watches.
pub const DEV_STREAMS_MAX: u32 = 1_024;
/// A watcher that asked for it hears this often that nothing has happened, as from etcd.
pub const WATCH_PROGRESS_INTERVAL: Duration = Duration::from_secs(600);
/// The shortest lease of the development server: what etcd 3.4 grants with its default timing.
pub const STORE_LEASE_TTL_MIN: Duration = Duration::from_secs(2);
/// The longest lease, as etcd has it: 285 years.
pub const STORE_LEASE_TTL_MAX: Duration = Duration::from_secs(9_000_000_000);

// --- directories --------------------------------------------------------------------------------

/// A tombstone hides its life for this long: longer than any late registry data seen in the field.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(600);
/// Two lives that claim one address are said after so long: three leases ([`LEASE_TTL`]). A program that
/// was killed and started again leaves its old registration until its lease ends.
pub const CLAIM_TOLD_AFTER: Duration = Duration::from_secs(30);
/// Tombstones of one hub; the oldest is dropped and counted.
pub const TOMBSTONES_MAX: usize = 10_000;
/// A removed endpoint's streams are cut after this long.
pub const LINGER_REMOVED: Duration = Duration::from_secs(600);
/// A closing endpoint whose connection stays open is asked this often whether it has resumed.
pub const RESUME_CHECK: Duration = Duration::from_secs(5);

// --- calls --------------------------------------------------------------------------------------

/// First and last pause between dials of one endpoint.
pub const DIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// A call that finds no instance has an endpoint dialled as soon as its last attempt is this long past,
/// whatever is left of the pause: a server that comes back is met by the next call. Eight dials a second
/// of one endpoint at most, each of which costs a refusing kernel one packet.
pub const DIAL_WANTED_AFTER: Duration = Duration::from_millis(125);
/// From connect to the peer's SETTINGS.
pub const DIAL_MAX: Duration = Duration::from_secs(2);
/// From a connection's readiness to the first answer of its health Watch: a peer that is silent for
/// so long right after its SETTINGS is not one to send calls to.
pub const FIRST_ANSWER_MAX: Duration = Duration::from_secs(2);
/// A connection or Watch that ends sooner, and has answered nothing, counts as a failed attempt: a peer
/// that accepts, says GOAWAY and accepts again would otherwise be dialled in a loop.
pub const CONNECTION_SETTLED: Duration = Duration::from_secs(1);
/// Names behind an endpoint are looked up at each dial and this often.
pub const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// Attempts of one call in all.
pub const ATTEMPTS_MAX: u32 = 3;
/// Placements of one call in all, those that never left the process included: each takes another
/// connection, so more than this many connections ended under one call.
pub const PLACEMENTS_MAX: u32 = 16;
/// Retries may be this many hundredths of the calls of the last [`RETRY_WINDOW`] …
pub const RETRY_PERCENT: u32 = 20;
/// … plus this many a second, so that a caller of few calls can retry at all.
pub const RETRIES_PER_SECOND: u32 = 3;
/// The window over which calls count for the retry budget.
pub const RETRY_WINDOW: Duration = Duration::from_secs(10);
/// A call without any usable endpoint waits at most this long (and never past its deadline); so does one
/// that has failed at all usable ones, where another is being connected.
pub const PICK_WAIT_MAX: Duration = Duration::from_secs(2);
/// A call that finds the streams of all instances in use waits for one to its deadline; without a
/// deadline at most this long, so that answers that never end do not take all later calls with them in
/// silence. Longer than an ordinary handler works.
pub const STREAM_WAIT_MAX: Duration = Duration::from_secs(20);
/// That calls wait for streams is said of one directory at most this often: a line that forms and
/// dissolves many times a second is one condition.
pub const STREAMS_TOLD_INTERVAL: Duration = Duration::from_secs(60);
/// Streams that a caller opens on one connection where its peer allows more, or says nothing: tonic's
/// servers set no bound. An open stream costs a few KiB, and a connection carries this many as fast as a
/// hundred.
pub const CLIENT_STREAMS_MAX: u32 = 1_024;
/// What a caller may receive of one stream before it has read it, in bytes: hyper's default for
/// clients, which keeps a 100 Mbit/s path of 160 ms full.
pub const CLIENT_WINDOW_BYTES: u32 = 2 << 20;
/// The same for all streams of a connection, in bytes: 63 readers that have stalled leave room for the
/// calls beside them. Only what has come and was not read is held, so this is the most memory that one
/// connection takes by its answers.
pub const CLIENT_CONNECTION_WINDOW_BYTES: u32 = 128 << 20;
/// Largest header list of an answer that a caller takes, in bytes: as much as grpc-go. Longer ones lose
/// their own call. h2 takes more than five quarters of this in one block, or four times as much once
/// decoded, for an attack, and ends the connection with all its calls: with 16 KiB, a status text of
/// 100 kB was enough. An answer's head is held until its call takes it.
pub const CLIENT_HEADER_BYTES_MAX: u32 = 16 << 20;
/// Instances that calls have dialled before their pause is over, at once in one directory: calls that
/// find none of thousands must not dial them all eight times a second.
pub const DIALS_WANTED_MAX: usize = 64;
/// An instance whose calls mostly fail is chosen again after so long, until the next failure: short enough
/// for one that is well again, and few calls for one that is not.
pub const FAILING_TRIED_AFTER: Duration = Duration::from_secs(1);
/// Instances of which a failed call's text gives the reason why they take none: enough to see what is
/// wrong, and no line of thousands.
pub const REASONS_MAX: usize = 3;
/// Dials under way at once in one hub: each is a socket, for as long as a silent peer may take. Lists of
/// thousands are dialled in some hundred milliseconds all the same.
pub const DIALS_MAX: usize = 256;
/// Where a host name has several addresses, the next one is tried beside one that has not answered for
/// this long (RFC 8305, 5, "Connection Attempt Delay").
pub const DIAL_STAGGER: Duration = Duration::from_millis(250);
/// Addresses of one host name that are tried by one dial.
pub const DIAL_ADDRESSES_MAX: usize = 16;
/// The part of the process's descriptors (one of so many) that dials leave to everything else in it: its
/// listeners, files, databases …
pub const DESCRIPTORS_KEPT_DIVISOR: u64 = 8;
/// … but at least so many, where the process has twice as many at all, and at most so many.
pub const DESCRIPTORS_KEPT: (u64, u64) = (32, 1_024);
/// Dials that may take a descriptor of those at once: a directory of which nothing can be called needs one
/// connection.
pub const DESCRIPTORS_LAST_DIALS: usize = 2;
/// The want of descriptors counts as over once no dial has met it for this long.
pub const DESCRIPTORS_SETTLED: Duration = Duration::from_secs(10);
/// Streams given up whose late frames a caller's connection still expects, so that they are no
/// error of the peer's: some waves of deadlines on a full connection.
pub const CLIENT_RESETS_REMEMBERED: usize = 1_000;
/// For how long: a server that was frozen answers what it had read as soon as it goes on.
pub const CLIENT_RESET_MEMORY: Duration = Duration::from_secs(30);
/// A caller opens no stream above this id on one connection. Ids end at 2^31 - 1 (RFC 9113, 5.1.1),
/// which 10,000 calls a second reach in 30 hours; those in flight fit into what is left.
pub const STREAM_ID_LAST: u32 = 0x7fff_ffff - 2 * 10_000;
/// Bytes that the peer's kernel has not acknowledged for this long end a caller's connection
/// (TCP_USER_TIMEOUT): the time after which silence makes an endpoint unavailable.
pub const TCP_UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);
/// Connections of one endpoint: a further one only where the streams of all others are in use. The
/// server's own limit of streams is often 100 or 128 a connection, so this allows some 3,000 calls at
/// once to one instance; a descriptor and some 100 KiB each.
pub const CONNECTIONS_PER_ENDPOINT_MAX: usize = 32;
/// Connections of one endpoint that the peer told to go and that still have calls open; of more, the
/// oldest is cut. A peer with a connection age of minutes and streams of hours stays below it.
pub const CONNECTIONS_LEAVING_MAX: usize = 64;
/// A unary request body up to this many bytes is kept for another attempt.
pub const REPLAY_BYTES_MAX: usize = 1 << 20;
/// A mark's header value, in bytes.
pub const MARK_BYTES_MAX: usize = 1 << 10;
