//! Configuration of one node: flags, environment and file become one validated [`NodeConfig`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;

/// What `headwater node` takes. A flag wins over its environment variable, that over the file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct NodeArgs {
    /// Read settings from this TOML file; keys are the flags' names without the dashes in front
    #[arg(long, env = "HEADWATER_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// The node's name, unique in the cluster and the same at every start
    #[arg(long, env = "HEADWATER_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Address for NATS clients [default: 127.0.0.1:4222]
    #[arg(long, env = "HEADWATER_LISTEN", value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Address of the monitoring and admin HTTP server [default: 127.0.0.1:8222]
    #[arg(long, env = "HEADWATER_HTTP", value_name = "HOST:PORT")]
    pub(crate) http: Option<String>,
    /// Address for the other nodes [default: 127.0.0.1:6222]
    #[arg(long, env = "HEADWATER_CLUSTER_LISTEN", value_name = "HOST:PORT")]
    pub(crate) cluster_listen: Option<String>,
    /// Every node of the first cluster, this one included, as NAME=HOST:PORT, comma separated; without it: a cluster of one
    #[arg(long, env = "HEADWATER_PEERS", value_name = "LIST")]
    pub(crate) peers: Option<String>,
    /// Folder that holds the node's data
    #[arg(long, env = "HEADWATER_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<String>,
    /// HOST:PORT that clients are told to use for this node [default: the listen address]
    #[arg(long, env = "HEADWATER_CLIENT_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) client_advertise: Option<String>,
    /// HOST:PORT that other nodes are told to use for this node [default: its address in --peers, or the cluster address]
    #[arg(long, env = "HEADWATER_CLUSTER_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) cluster_advertise: Option<String>,
    /// File with the token that changing admin calls must carry; without it only loopback may make them
    #[arg(long, env = "HEADWATER_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<String>,
    /// Largest message payload in bytes [default: 1048576]
    #[arg(long, env = "HEADWATER_MAX_PAYLOAD", value_name = "BYTES")]
    #[serde(deserialize_with = "number_or_text")]
    pub(crate) max_payload: Option<String>,
}

/// One seed: a name and where to dial it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) addr: String,
}

/// Checked settings.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) name: String,
    pub(crate) listen: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) cluster_listen: SocketAddr,
    /// Empty for a cluster of one.
    pub(crate) peers: Vec<Peer>,
    pub(crate) store_dir: PathBuf,
    pub(crate) client_advertise: String,
    pub(crate) cluster_advertise: String,
    pub(crate) admin_token: Option<String>,
    pub(crate) max_payload: usize,
}

/// Largest payload that can be configured: a frame holds at least one message, and the wire frame is at most 64 MiB.
const MAX_PAYLOAD_LIMIT: u64 = 32 << 20;

/// Reads the file, if one is named, beneath the flags. `Err` lists every problem.
pub(crate) fn load(args: NodeArgs) -> Result<NodeConfig, Vec<String>> {
    let merged = match &args.config {
        None => args,
        Some(path) => {
            let shown = path.display();
            let text = read_file(path).map_err(|e| vec![format!("--config {shown}: {e}")])?;
            let file: NodeArgs =
                toml::from_str(&text).map_err(|e| vec![format!("--config {shown}: {}", e.to_string().trim_end())])?;
            overlay(args, file)
        }
    };
    validate(merged)
}

#[expect(clippy::disallowed_methods, reason = "settings are read once at start, not through the store's disk")]
fn read_file(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

fn overlay(top: NodeArgs, base: NodeArgs) -> NodeArgs {
    NodeArgs {
        config: top.config,
        name: top.name.or(base.name),
        listen: top.listen.or(base.listen),
        http: top.http.or(base.http),
        cluster_listen: top.cluster_listen.or(base.cluster_listen),
        peers: top.peers.or(base.peers),
        store_dir: top.store_dir.or(base.store_dir),
        client_advertise: top.client_advertise.or(base.client_advertise),
        cluster_advertise: top.cluster_advertise.or(base.cluster_advertise),
        admin_token_file: top.admin_token_file.or(base.admin_token_file),
        max_payload: top.max_payload.or(base.max_payload),
    }
}

fn validate(args: NodeArgs) -> Result<NodeConfig, Vec<String>> {
    let mut problems = Vec::new();

    let name = match args.name {
        None => {
            problems.push("--name: missing; give the node a name that stays the same at every start".to_owned());
            String::new()
        }
        Some(n)
            if n.is_empty()
                || n.len() > 63
                || n.bytes().any(|b| !(b.is_ascii_alphanumeric() || b"-_.".contains(&b))) =>
        {
            problems.push(format!("--name {n:?}: use 1 to 63 letters, digits, '-', '_' or '.'"));
            n
        }
        Some(n) => n,
    };
    let mut socket = |flag: &str, given: Option<String>, default: &str| -> SocketAddr {
        let text = given.unwrap_or_else(|| default.to_owned());
        text.parse().unwrap_or_else(|_| {
            problems.push(format!("{flag} {text:?}: not an IP address with a port, like 127.0.0.1:4222"));
            SocketAddr::from(([127, 0, 0, 1], 0))
        })
    };
    let listen = socket("--listen", args.listen, "127.0.0.1:4222");
    let http = socket("--http", args.http, "127.0.0.1:8222");
    let cluster_listen = socket("--cluster-listen", args.cluster_listen, "127.0.0.1:6222");
    for (a, fa, b, fb) in [
        (listen, "--listen", http, "--http"),
        (listen, "--listen", cluster_listen, "--cluster-listen"),
        (http, "--http", cluster_listen, "--cluster-listen"),
    ] {
        if a == b && a.port() != 0 {
            problems.push(format!("{fb} {b}: the same address as {fa}"));
        }
    }

    let mut peers = Vec::new();
    for part in args.peers.as_deref().unwrap_or("").split(',').map(str::trim).filter(|p| !p.is_empty()) {
        match part.split_once('=') {
            Some((n, addr)) if !n.is_empty() && host_port(addr) => {
                if peers.iter().any(|p: &Peer| p.name == n) {
                    problems.push(format!("--peers: the name {n:?} stands twice"));
                } else if let Some(other) = peers.iter().find(|p| p.addr == addr) {
                    problems.push(format!("--peers: {n} and {} have the same address {addr}", other.name));
                }
                peers.push(Peer { name: n.to_owned(), addr: addr.to_owned() });
            }
            _ => problems.push(format!("--peers: {part:?} is not NAME=HOST:PORT")),
        }
    }
    if !peers.is_empty() && !name.is_empty() && !peers.iter().any(|p| p.name == name) {
        problems.push(format!("--peers: does not list this node, --name {name}"));
    }

    let store_dir = args.store_dir.filter(|dir| !dir.is_empty()).map(PathBuf::from).unwrap_or_else(|| {
        problems.push("--store-dir: missing; name the folder that holds the node's data".to_owned());
        PathBuf::new()
    });
    let mut advertise = |flag: &str, given: Option<String>, default: String| match given {
        Some(a) if !host_port(&a) => {
            problems.push(format!("{flag} {a:?}: not HOST:PORT"));
            a
        }
        Some(a) => a,
        None => default,
    };
    let client_advertise = advertise("--client-advertise", args.client_advertise, listen.to_string());
    let own_seed = peers.iter().find(|p| p.name == name).map_or_else(|| cluster_listen.to_string(), |p| p.addr.clone());
    let cluster_advertise = advertise("--cluster-advertise", args.cluster_advertise, own_seed);

    let admin_token = args.admin_token_file.and_then(|path| match read_file(Path::new(&path)) {
        Ok(text) if text.trim().is_empty() => {
            problems.push(format!("--admin-token-file {path:?}: the file is empty"));
            None
        }
        Ok(text) => Some(text.trim().to_owned()),
        Err(e) => {
            problems.push(format!("--admin-token-file {path:?}: {e}"));
            None
        }
    });
    let max_payload = args.max_payload.as_deref().map_or(Some(1 << 20), |text| text.parse::<u64>().ok());
    let max_payload = max_payload.filter(|bytes| (1..=MAX_PAYLOAD_LIMIT).contains(bytes)).unwrap_or_else(|| {
        let given = args.max_payload.as_deref().unwrap_or_default();
        problems.push(format!("--max-payload {given:?}: use a number from 1 to {MAX_PAYLOAD_LIMIT} (bytes)"));
        0
    });

    if problems.is_empty() {
        Ok(NodeConfig {
            name,
            listen,
            http,
            cluster_listen,
            peers,
            store_dir,
            client_advertise,
            cluster_advertise,
            admin_token,
            max_payload: usize::try_from(max_payload).expect("at most 32 MiB"),
        })
    } else {
        Err(problems)
    }
}

/// The file may say a number, as TOML has them; what is wrong with it is told with all the rest.
fn number_or_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Text(String),
    }
    Ok(Some(match Either::deserialize(from)? {
        Either::Number(n) => n.to_string(),
        Either::Text(text) => text,
    }))
}

fn host_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_told_at_once_and_names_its_flag() {
        let args = NodeArgs {
            name: Some("n 1".into()),
            listen: Some("localhost".into()),
            http: Some("127.0.0.1:1".into()),
            cluster_listen: Some("127.0.0.1:1".into()),
            peers: Some("n2=127.0.0.1:6222,nope,n2=127.0.0.1:7,n3=127.0.0.1:6222".into()),
            client_advertise: Some("x".into()),
            store_dir: Some(String::new()),
            max_payload: Some("-5".into()),
            ..NodeArgs::default()
        };
        let problems = load(args).unwrap_err();
        for flag in ["--name", "--listen", "--cluster-listen", "--store-dir", "--client-advertise", "--max-payload"] {
            assert!(problems.iter().any(|p| p.starts_with(flag)), "{flag} in {problems:?}");
        }
        assert_eq!(problems.iter().filter(|p| p.starts_with("--peers")).count(), 4, "{problems:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a settings file, not a store")]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.toml");
        std::fs::write(&path, "name = \"file\"\nlisten = \"127.0.0.1:5000\"\nstore-dir = \"/d\"\nmax-payload = 4096\n")
            .unwrap();
        let config =
            load(NodeArgs { config: Some(path.clone()), name: Some("flag".into()), ..NodeArgs::default() }).unwrap();
        assert_eq!((config.name.as_str(), config.listen.port(), config.max_payload), ("flag", 5000, 4096));
        std::fs::write(&path, "nam = \"x\"").unwrap();
        let problems = load(NodeArgs { config: Some(path), ..NodeArgs::default() }).unwrap_err();
        assert!(problems[0].contains("nam"), "{problems:?}");
    }
}
