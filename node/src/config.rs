//! Configuration of one node: flags, environment and file become one validated [`NodeConfig`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

/// What `headwater node` takes. A flag wins over its environment variable, that over the file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NodeArgs {
    /// Read settings from this TOML file; keys are the flags' names without the dashes in front
    #[arg(long, env = "HEADWATER_CONFIG", value_name = "FILE")]
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
    /// File with the token that changing admin calls must carry; without it they must come from this machine, by a
    /// loopback name, and not from a web page
    #[arg(long, env = "HEADWATER_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<String>,
    /// Largest message payload in bytes [default: 1048576]
    // A negative number is no flag, and its refusal comes with those of the others.
    #[arg(long, env = "HEADWATER_MAX_PAYLOAD", value_name = "BYTES", allow_negative_numbers = true)]
    pub(crate) max_payload: Option<String>,
    /// Bytes that must be free on the store's file system for new messages and streams to be taken in; 0 for no limit
    /// [default: 167772160, or a fourth of the file system if that is less]
    #[arg(long, env = "HEADWATER_MIN_FREE_SPACE", value_name = "BYTES", allow_negative_numbers = true)]
    pub(crate) min_free_space: Option<String>,
    /// Bytes a second at which stored messages are read again to see whether they are still whole; 0: never
    /// [default: 8388608]
    #[arg(long, env = "HEADWATER_SCRUB_RATE", value_name = "BYTES", allow_negative_numbers = true)]
    pub(crate) scrub_rate: Option<String>,
    /// Time from the start of one such reading of the whole store to the start of the next, like 12h [default: 24h]
    #[arg(long, env = "HEADWATER_SCRUB_EVERY", value_name = "TIME")]
    pub(crate) scrub_every: Option<String>,
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
    /// Bytes; `None` is what [`headwater_core::space`] has.
    pub(crate) min_free_space: Option<u64>,
    /// Bytes a second; 0 is never.
    pub(crate) scrub_rate: u64,
    pub(crate) scrub_every: Duration,
}

const SCRUB_RATE: u64 = 8 << 20;
const SCRUB_EVERY: Duration = Duration::from_secs(24 * 3600);

/// Largest payload that can be configured: a frame holds at least one message, and the wire frame is at most 64 MiB.
const MAX_PAYLOAD_LIMIT: u64 = 32 << 20;

/// Keys that hold a number.
const NUMBERS: [&str; 3] = ["max-payload", "min-free-space", "scrub-rate"];

/// Reads the file, if one is named, beneath the flags. `Err` lists every problem.
pub(crate) fn load(args: NodeArgs) -> Result<NodeConfig, Vec<String>> {
    let Some(path) = args.config.clone() else { return validate(args) };
    let File { settings, mut problems, bad } = from_file(&path);
    match validate(overlay(args, settings)) {
        Ok(config) if problems.is_empty() => Ok(config),
        Ok(_) => Err(problems),
        Err(others) => {
            // What the file says and cannot be read is told above; it is not missing.
            let told = |problem: &String| {
                let flag = problem.split([' ', ':']).next().unwrap_or_default();
                bad.all_missing && problem.contains(": missing")
                    || bad.keys.iter().any(|key| flag == format!("--{key}"))
            };
            problems.extend(others.into_iter().filter(|problem| !told(problem)));
            Err(problems)
        }
    }
}

/// What a settings file came to.
#[derive(Default)]
struct File {
    settings: NodeArgs,
    problems: Vec<String>,
    bad: Bad,
}

/// What a settings file says in a way that cannot be used.
#[derive(Default)]
struct Bad {
    keys: Vec<String>,
    /// The whole file.
    all_missing: bool,
}

fn from_file(path: &Path) -> File {
    let mut file = File::default();
    let text = read_file(path).map_err(|e| e.to_string());
    let table = text.and_then(|text| text.parse::<toml::Table>().map_err(|e| e.to_string().trim_end().to_owned()));
    let shown = path.display();
    let table = match table {
        Ok(table) => table,
        Err(why) => {
            file.problems.push(format!("--config {shown}: {why}"));
            file.bad.all_missing = true;
            return file;
        }
    };
    for (key, value) in table {
        let mut fields = file.settings.fields();
        let known = fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let Some((name, field)) = fields.iter_mut().find(|(name, _)| *name == key) else {
            file.problems.push(format!("--config {shown}: {key}: unknown key; there are {known}"));
            continue;
        };
        match value {
            toml::Value::String(text) => **field = Some(text),
            // What is wrong with the number is told with all the rest.
            toml::Value::Integer(number) if NUMBERS.contains(name) => **field = Some(number.to_string()),
            other => {
                let kind = if NUMBERS.contains(name) { "a number" } else { "text in quotes" };
                file.problems.push(format!("--config {shown}: {key}: must be {kind}, not {}", other.type_str()));
                file.bad.keys.push(key);
            }
        }
    }
    file
}

impl NodeArgs {
    /// Every setting that a file may hold, by its key.
    fn fields(&mut self) -> [(&'static str, &mut Option<String>); 13] {
        let Self {
            config: _,
            name,
            listen,
            http,
            cluster_listen,
            peers,
            store_dir,
            client_advertise,
            cluster_advertise,
            admin_token_file,
            max_payload,
            min_free_space,
            scrub_rate,
            scrub_every,
        } = self;
        [
            ("name", name),
            ("listen", listen),
            ("http", http),
            ("cluster-listen", cluster_listen),
            ("peers", peers),
            ("store-dir", store_dir),
            ("client-advertise", client_advertise),
            ("cluster-advertise", cluster_advertise),
            ("admin-token-file", admin_token_file),
            ("max-payload", max_payload),
            ("min-free-space", min_free_space),
            ("scrub-rate", scrub_rate),
            ("scrub-every", scrub_every),
        ]
    }
}

#[expect(clippy::disallowed_methods, reason = "settings are read once at start, not through the store's disk")]
fn read_file(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

fn overlay(mut top: NodeArgs, mut base: NodeArgs) -> NodeArgs {
    for ((_, top), (_, base)) in top.fields().into_iter().zip(base.fields()) {
        if top.is_none() {
            *top = base.take();
        }
    }
    top
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

    let min_free_space = args.min_free_space.as_deref().and_then(|text| {
        let bytes = text.parse::<u64>().ok();
        if bytes.is_none() {
            problems.push(format!("--min-free-space {text:?}: use a number of bytes, 0 for no limit"));
        }
        bytes
    });
    let scrub_rate = args.scrub_rate.map_or(SCRUB_RATE, |text| {
        text.parse().unwrap_or_else(|_| {
            problems.push(format!("--scrub-rate {text:?}: use a number of bytes a second, 0 for never"));
            0
        })
    });
    let scrub_every = args.scrub_every.map_or(SCRUB_EVERY, |text| {
        let every = humantime::parse_duration(&text).ok().filter(|every| *every >= Duration::from_secs(1));
        every.unwrap_or_else(|| {
            problems.push(format!("--scrub-every {text:?}: use a time of a second or more, like 12h"));
            SCRUB_EVERY
        })
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
            min_free_space,
            scrub_rate,
            scrub_every,
        })
    } else {
        Err(problems)
    }
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
            min_free_space: Some("1GB".into()),
            scrub_rate: Some("-1".into()),
            scrub_every: Some("0s".into()),
            ..NodeArgs::default()
        };
        let problems = load(args).unwrap_err();
        for flag in [
            "--name",
            "--listen",
            "--cluster-listen",
            "--store-dir",
            "--client-advertise",
            "--max-payload",
            "--min-free-space",
            "--scrub-rate",
            "--scrub-every",
        ] {
            assert!(problems.iter().any(|p| p.starts_with(flag)), "{flag} in {problems:?}");
        }
        assert_eq!(problems.iter().filter(|p| p.starts_with("--peers")).count(), 4, "{problems:?}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a settings file, not a store")]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.toml");
        std::fs::write(&path, "name = \"file\"\nlisten = \"127.0.0.1:5000\"\nstore-dir = \"/d\"\nmax-payload = 4096\nmin-free-space = 77\nscrub-rate = 0\nscrub-every = \"90m\"\n")
            .unwrap();
        let config = load(NodeArgs { config: Some(path), name: Some("flag".into()), ..NodeArgs::default() }).unwrap();
        assert_eq!((config.name.as_str(), config.listen.port(), config.max_payload), ("flag", 5000, 4096));
        assert_eq!(config.min_free_space, Some(77));
        assert_eq!((config.scrub_rate, config.scrub_every), (0, Duration::from_secs(90 * 60)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a settings file, not a store")]
    fn what_is_wrong_with_the_file_hides_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.toml");
        let problems = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load(NodeArgs { config: Some(path.clone()), http: Some("x".into()), ..NodeArgs::default() }).unwrap_err()
        };
        let told =
            problems("name = 5\nlisten = \"foo\"\nbogus = true\nmax-payload = [1]\nstore_dir = \"/tmp/x\"\n[nats]\n");
        for (part, count) in [
            (": name: must be text in quotes, not integer", 1),
            (": max-payload: must be a number, not array", 1),
            (": bogus: unknown key; there are name, listen, ", 1),
            (": store_dir: unknown key", 1),
            (": nats: unknown key", 1),
            ("--listen \"foo\"", 1),
            ("--http \"x\"", 1),
            ("--store-dir: missing", 1),
            ("--name", 0),
            ("--max-payload", 0),
        ] {
            assert_eq!(told.iter().filter(|p| p.contains(part)).count(), count, "{part} in {told:#?}");
        }
        let told = problems("= = =");
        assert!(told.len() == 2 && told[0].starts_with("--config") && told[1].starts_with("--http"), "{told:#?}");
    }

    #[test]
    fn a_negative_number_is_a_value_and_told_with_the_rest() {
        use clap::Parser;
        #[derive(Parser)]
        struct Cli {
            #[command(flatten)]
            node: NodeArgs,
        }
        let cli = Cli::try_parse_from(["headwater", "--max-payload", "-1", "--listen", "x"]).unwrap();
        let problems = load(cli.node).unwrap_err();
        for flag in ["--max-payload \"-1\"", "--listen \"x\"", "--name"] {
            assert!(problems.iter().any(|p| p.starts_with(flag)), "{flag} in {problems:?}");
        }
    }
}
