//! Command line: `run` and `crds`, and the check that reports every bad value at once.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Name of the Lease that elects the one operator process that acts.
pub(crate) const LEASE_NAME: &str = "headwater-operator";

/// Headwater's Kubernetes operator.
#[derive(Debug, Parser)]
#[command(name = "headwater-operator", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reconcile Stream and StreamCluster objects until told to stop
    Run(RunArgs),
    /// Print the CustomResourceDefinitions as YAML
    Crds,
}

/// Flags of `run` as typed. [`RunArgs::validate`] turns them into [`Settings`].
#[derive(Args, Debug, Clone)]
pub(crate) struct RunArgs {
    /// Namespace to watch, or `all`
    #[arg(long, env = "HEADWATER_NAMESPACE", default_value = "all", value_name = "NS|all")]
    pub(crate) namespace: String,
    /// Namespace of the leader-election Lease (default: the watched namespace, else the one the operator runs in)
    #[arg(long, env = "HEADWATER_LEASE_NAMESPACE", value_name = "NS")]
    pub(crate) lease_namespace: Option<String>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, env = "HEADWATER_HTTP", default_value = "127.0.0.1:9090", value_name = "ADDR")]
    pub(crate) http: String,
    /// Name of this process in the Lease and in events (default: host name, process id and start time)
    #[arg(long, env = "HEADWATER_IDENTITY", value_name = "NAME")]
    pub(crate) identity: Option<String>,
    /// How often an object at rest is compared with its cluster, in seconds (5 to 3600)
    #[arg(long, env = "HEADWATER_RESYNC_SECONDS", default_value = "20", value_name = "SECONDS")]
    pub(crate) resync_seconds: String,
    /// Log as text or as one JSON object a line
    #[arg(long, env = "HEADWATER_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Shape of the log on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The checked configuration of `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `None` watches every namespace.
    pub(crate) namespace: Option<String>,
    /// `None` leaves the choice to the kubeconfig's or the pod's own namespace.
    pub(crate) lease_namespace: Option<String>,
    pub(crate) http: SocketAddr,
    pub(crate) identity: String,
    pub(crate) resync_s: u64,
    pub(crate) log_format: LogFormat,
}

impl RunArgs {
    /// Checks every flag and returns all problems, one a line and each with the flag's name.
    ///
    /// # Errors
    /// The list of problems, never empty.
    pub(crate) fn validate(&self) -> Result<Settings, Vec<String>> {
        let mut problems = Vec::new();
        let namespace = match self.namespace.as_str() {
            "all" => None,
            name => {
                check_label(name, "--namespace", &mut problems);
                Some(name.to_owned())
            }
        };
        if let Some(name) = &self.lease_namespace {
            check_label(name, "--lease-namespace", &mut problems);
        }
        let http = self.http.parse::<SocketAddr>().unwrap_or_else(|_| {
            problems.push(format!("--http: {:?} is not an address such as 127.0.0.1:9090", self.http));
            SocketAddr::from(([127, 0, 0, 1], 0))
        });
        let identity = self.identity.clone().unwrap_or_else(default_identity);
        if identity.is_empty() || identity.len() > 128 || identity.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            problems.push("--identity: must be 1 to 128 characters without spaces".to_owned());
        }
        let resync_s = self.resync_seconds.parse::<u64>().unwrap_or(0);
        if !(5..=3600).contains(&resync_s) {
            problems.push(format!("--resync-seconds: {:?} is not a whole number from 5 to 3600", self.resync_seconds));
        }
        if problems.is_empty() {
            Ok(Settings {
                namespace,
                lease_namespace: self.lease_namespace.clone(),
                http,
                identity,
                resync_s,
                log_format: self.log_format,
            })
        } else {
            Err(problems)
        }
    }
}

/// A namespace is an RFC 1123 label.
fn check_label(name: &str, flag: &str, problems: &mut Vec<String>) {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let bytes = name.as_bytes();
    if bytes.len() > 63 || !bytes.iter().all(|c| inner(*c)) || !edge(bytes.first()) || !edge(bytes.last()) {
        problems
            .push(format!("{flag}: {name:?} is not a namespace name (lower-case letters, digits and '-', at most 63)"));
    }
}

/// Unique per process start, so that a restarted operator never takes its predecessor's Lease for its own.
#[expect(clippy::disallowed_methods, reason = "the host's name is read once at start, before any runtime")]
fn default_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "operator" } else { host };
    let started = jiff::Timestamp::now().as_millisecond();
    format!("{host}-{}-{started:x}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(namespace: &str, http: &str, resync: &str) -> RunArgs {
        RunArgs {
            namespace: namespace.to_owned(),
            lease_namespace: None,
            http: http.to_owned(),
            identity: Some("me".to_owned()),
            resync_seconds: resync.to_owned(),
            log_format: LogFormat::Text,
        }
    }

    #[test]
    fn all_bad_flags_are_reported_at_once() {
        let mut bad = args("Not_A_Name", "nowhere", "0");
        bad.lease_namespace = Some("-x".to_owned());
        bad.identity = Some("two words".to_owned());
        let problems = bad.validate().unwrap_err();
        let flags: Vec<_> = problems.iter().map(|p| p.split(':').next().unwrap()).collect();
        assert_eq!(flags, ["--namespace", "--lease-namespace", "--http", "--identity", "--resync-seconds"]);
    }

    #[test]
    fn all_means_every_namespace_and_a_name_means_that_one() {
        assert_eq!(args("all", "127.0.0.1:1", "20").validate().unwrap().namespace, None);
        let one = args("team-a", "[::1]:1", "20").validate().unwrap();
        assert_eq!(one.namespace.as_deref(), Some("team-a"));
    }

    #[test]
    fn the_default_identity_is_valid() {
        let mut settings = args("all", "127.0.0.1:1", "20");
        settings.identity = None;
        assert!(settings.validate().is_ok());
    }
}
