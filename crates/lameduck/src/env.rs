//! What the environment says, read once when a hub or a provider is built.

use std::ffi::OsString;
use std::net::IpAddr;

/// The few words of the environment that lameduck looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `POD_IP`: where others reach this process, as Kubernetes' downward API gives it.
    pub pod_ip: PodIp,
    /// Whether this runs inside a Kubernetes cluster (`KUBERNETES_SERVICE_HOST` is set).
    pub in_cluster: bool,
}

/// What `POD_IP` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodIp {
    /// Nothing: it is not set, or blank.
    #[default]
    Unset,
    /// An IP address.
    Ip(IpAddr),
    /// Something else. A provider that would have to publish it is not built: the next best address
    /// may be one at which nobody reaches it.
    NoIp(String),
}

impl Environment {
    /// Reads it.
    #[must_use]
    pub fn read() -> Self {
        Self {
            pod_ip: PodIp::of(std::env::var_os("POD_IP")),
            in_cluster: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }
}

impl PodIp {
    fn of(value: Option<OsString>) -> Self {
        let value = value.unwrap_or_default();
        let text = value.to_string_lossy();
        match text.trim() {
            "" => Self::Unset,
            text => text
                .parse()
                .map_or_else(|_| Self::NoIp(text.to_owned()), Self::Ip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_ip_address_is_kept_to_be_told() {
        let of = |text: &str| PodIp::of(Some(text.into()));
        assert_eq!(PodIp::of(None), PodIp::Unset);
        assert_eq!(of(" "), PodIp::Unset);
        assert_eq!(of(" 10.0.0.7\n"), PodIp::Ip([10, 0, 0, 7].into()));
        assert_eq!(of("nonsense"), PodIp::NoIp("nonsense".to_owned()));
        assert_eq!(of("10.0.0.7:80"), PodIp::NoIp("10.0.0.7:80".to_owned()));
    }
}
