//! What the environment says, read once when a hub or a provider is built.

use std::net::IpAddr;

/// The few words of the environment that lameduck looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `POD_IP`: where others reach this process, as Kubernetes' downward API gives it.
    pub pod_ip: Option<IpAddr>,
    /// Whether this runs inside a Kubernetes cluster (`KUBERNETES_SERVICE_HOST` is set).
    pub in_cluster: bool,
}

impl Environment {
    /// Reads it. A `POD_IP` that is no IP address counts as absent.
    #[must_use]
    pub fn read() -> Self {
        Self {
            pod_ip: std::env::var("POD_IP")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            in_cluster: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }
}
