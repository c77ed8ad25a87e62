//! Stock proxies between the callers and all servers: how each is configured, started and reloaded.
//!
//! Callers know one address, the proxy's, and every server stands behind it. A proxy hides which life
//! answers and passes no GOAWAY on: it decides itself what becomes of a server that leaves.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// A program that passes HTTP/2 in clear text on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// nginx with `grpc_pass`. It ends a connection after some requests.
    Nginx,
    /// HAProxy with HTTP/2 on both sides, and a TCP check of every server.
    Haproxy,
    /// Caddy with `reverse_proxy h2c://`.
    Caddy,
    /// Envoy with HTTP/2 on both sides, and a health check of every server by `grpc.health.v1`.
    Envoy,
}

/// How a proxy is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxySpec {
    /// Which one.
    pub proxy: Proxy,
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Where servers listen.
    pub servers: Vec<SocketAddr>,
    /// Requests after which nginx ends a connection: a caller's, and one of its own to a server.
    pub keepalive_requests: u32,
}

impl Proxy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nginx, Self::Haproxy, Self::Caddy, Self::Envoy];

    /// Its name on the command line, and that of its program.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            Self::Envoy => "envoy",
        }
    }

    /// The signal upon which it starts anew by itself and lets what is under way finish; none where a
    /// signal does not do that.
    #[must_use]
    pub const fn reload(self) -> Option<Signal> {
        match self {
            Self::Nginx => Some(Signal::HUP),
            Self::Haproxy => Some(Signal::USR2),
            Self::Caddy | Self::Envoy => None,
        }
    }

    /// Its arguments, for a configuration in `file`.
    #[must_use]
    pub fn arguments(self, file: &str) -> Vec<String> {
        let arguments: &[&str] = match self {
            Self::Nginx => &["-c", file, "-e", "stderr"],
            Self::Haproxy => &["-W", "-db", "-f", file],
            Self::Caddy => &["run", "--adapter", "caddyfile", "--config", file],
            Self::Envoy => &["-c", file, "--log-level", "error", "--concurrency", "1"],
        };
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        // Several Envoys of one machine must not share their memory.
        let own: &[&str] = match self {
            Self::Envoy => &["--disable-hot-restart"],
            _ => &[],
        };
        arguments
            .chain(own.iter().map(|argument| (*argument).to_owned()))
            .collect()
    }
}

impl ProxySpec {
    /// The configuration; what the proxy writes goes below `home`.
    #[must_use]
    pub fn configuration(&self, home: &Path) -> String {
        match self.proxy {
            Proxy::Nginx => self.nginx(home),
            Proxy::Haproxy => self.haproxy(),
            Proxy::Caddy => self.caddy(),
            Proxy::Envoy => self.envoy(),
        }
    }

    /// `max_fails=0`: by its default nginx leaves a server alone for 10 s after one failure, and two
    /// servers that leave one after the other are none.
    fn nginx(&self, home: &Path) -> String {
        let home = home.display();
        let servers = self.each(|_, server| format!("server {server} max_fails=0;"));
        let (listen, requests) = (self.listen, self.keepalive_requests);
        format!(
            "daemon off;\nworker_processes 1;\npid \"{home}/nginx.pid\";\nerror_log stderr warn;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\naccess_log off;\n\
             client_body_temp_path \"{home}/body\";\nproxy_temp_path \"{home}/proxy\";\n\
             fastcgi_temp_path \"{home}/fastcgi\";\nuwsgi_temp_path \"{home}/uwsgi\";\n\
             scgi_temp_path \"{home}/scgi\";\n\
             upstream servers {{\n{servers}keepalive 64;\nkeepalive_requests {requests};\n}}\n\
             server {{\nlisten {listen} http2;\nkeepalive_requests {requests};\n\
             http2_max_concurrent_streams 1024;\n\
             location / {{ grpc_pass grpc://servers; }}\n}}\n}}\n"
        )
    }

    fn haproxy(&self) -> String {
        let servers = self.each(|number, server| {
            format!("    server s{number} {server} proto h2 check inter 200ms")
        });
        let listen = self.listen;
        format!(
            "global\n    maxconn 4096\n    hard-stop-after 30s\n\
             defaults\n    mode http\n    timeout connect 1s\n    timeout client 60s\n    timeout server 60s\n    \
             option redispatch\n    retries 3\n\
             frontend callers\n    bind {listen} proto h2\n    default_backend servers\n\
             backend servers\n    balance roundrobin\n{servers}"
        )
    }

    fn caddy(&self) -> String {
        let servers = self.each(|_, server| format!("        to h2c://{server}"));
        let listen = self.listen;
        format!(
            "{{\n    admin off\n    auto_https off\n    persist_config off\n    \
             servers {{\n        protocols h1 h2c\n    }}\n}}\n\
             http://{listen} {{\n    bind {}\n    reverse_proxy {{\n{servers}        lb_policy round_robin\n        \
             lb_try_duration 1s\n        lb_try_interval 50ms\n        flush_interval -1\n    }}\n}}\n",
            self.listen.ip()
        )
    }

    fn envoy(&self) -> String {
        let address = |socket: SocketAddr| {
            format!(
                "address: {{ socket_address: {{ address: {}, port_value: {} }} }}",
                socket.ip(),
                socket.port()
            )
        };
        let servers = self.each(|_, server| format!("      - endpoint: {{ {} }}", address(server)));
        let options = "typed_extension_protocol_options:\n      \
             envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
             \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
             explicit_http_config: { http2_protocol_options: {} }";
        format!(
            "static_resources:\n  listeners:\n  - name: callers\n    {}\n    filter_chains:\n    - filters:\n      \
             - name: envoy.filters.network.http_connection_manager\n        typed_config:\n          \
             \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
             codec_type: HTTP2\n          stat_prefix: callers\n          route_config:\n            virtual_hosts:\n            \
             - name: all\n              domains: [\"*\"]\n              routes:\n              \
             - match: {{ prefix: / }}\n                route: {{ cluster: servers, timeout: 0s }}\n          \
             http_filters:\n          - name: envoy.filters.http.router\n            typed_config:\n              \
             \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\n  \
             clusters:\n  - name: servers\n    type: STATIC\n    connect_timeout: 1s\n    lb_policy: ROUND_ROBIN\n    \
             {options}\n    health_checks:\n    - timeout: 1s\n      interval: 0.2s\n      no_traffic_interval: 0.2s\n      \
             unhealthy_threshold: 1\n      healthy_threshold: 1\n      grpc_health_check: {{}}\n    \
             load_assignment:\n      cluster_name: servers\n      endpoints:\n      - lb_endpoints:\n{}",
            address(self.listen),
            servers.replace("      - endpoint", "        - endpoint")
        )
    }

    /// One line for each server.
    fn each(&self, line: impl Fn(usize, SocketAddr) -> String) -> String {
        let mut lines = String::new();
        for (number, server) in self.servers.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{}", line(number, *server));
        }
        lines
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no known proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProxy;

impl fmt::Display for UnknownProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Proxy::ALL.map(Proxy::as_str);
        write!(f, "no such proxy; known are {}", known.join(", "))
    }
}

impl std::error::Error for UnknownProxy {}

impl FromStr for Proxy {
    type Err = UnknownProxy;

    fn from_str(text: &str) -> Result<Self, UnknownProxy> {
        let mut all = Self::ALL.into_iter();
        all.find(|proxy| proxy.as_str() == text).ok_or(UnknownProxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_stands_in_every_configuration() {
        for proxy in Proxy::ALL {
            assert_eq!(proxy.as_str().parse(), Ok(proxy));
            let servers = [7_001, 7_002].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            let spec = ProxySpec {
                proxy,
                listen: SocketAddr::from(([127, 0, 0, 1], 7_000)),
                servers: servers.to_vec(),
                keepalive_requests: 123,
            };
            let text = spec.configuration(Path::new("/home of a run"));
            for port in ["7000", "7001", "7002"] {
                assert!(text.contains(port), "{proxy}: {text}");
            }
        }
        let spec = ProxySpec {
            proxy: Proxy::Nginx,
            listen: SocketAddr::from(([127, 0, 0, 1], 7_000)),
            servers: Vec::new(),
            keepalive_requests: 123,
        };
        let text = spec.configuration(Path::new("/home of a run"));
        let sides = text.matches("keepalive_requests 123;").count();
        assert_eq!(sides, 2, "{text}");
        assert_eq!("squid".parse::<Proxy>(), Err(UnknownProxy));
    }
}
