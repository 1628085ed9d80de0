//! Which server the tests run, and how one node of it is started.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The addresses of one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) client: u16,
    pub(crate) http: u16,
    pub(crate) cluster: u16,
}

/// A server binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    Headwater(PathBuf),
    /// The reference: what these tests ask of both must hold there as well.
    NatsServer(PathBuf),
}

impl Server {
    /// The binary to test: `HEADWATER_BIN`, or the one built beside the running test.
    ///
    /// # Errors
    /// If there is none.
    pub fn find() -> anyhow::Result<Server> {
        let path = match std::env::var_os("HEADWATER_BIN") {
            Some(path) => PathBuf::from(path),
            None => beside_test()?,
        };
        if !path.is_file() {
            bail!("HEADWATER_BIN={} is not a file", path.display());
        }
        let path = path.canonicalize()?;
        let is_reference = path.file_name().is_some_and(|name| name == "nats-server");
        Ok(if is_reference { Server::NatsServer(path) } else { Server::Headwater(path) })
    }

    /// The command that runs node `index` of `ports.len()`, keeping everything in `dir`.
    pub(crate) fn command(&self, index: usize, ports: &[Ports], dir: &Path, always: bool) -> anyhow::Result<Command> {
        let Ports { client, http, cluster } = ports[index];
        let (name, store) = (format!("n{}", index + 1), dir.join("store"));
        match self {
            Server::Headwater(path) => {
                let peers: Vec<_> =
                    ports.iter().enumerate().map(|(i, p)| format!("n{}=127.0.0.1:{}", i + 1, p.cluster)).collect();
                let mut command = Command::new(path);
                command.args(["node", "--name", &name]);
                command.args(["--listen", &format!("127.0.0.1:{client}"), "--http", &format!("127.0.0.1:{http}")]);
                command.args(["--cluster-listen", &format!("127.0.0.1:{cluster}"), "--peers", &peers.join(",")]);
                command.arg("--store-dir").arg(store);
                Ok(command)
            }
            Server::NatsServer(path) => {
                let routes: Vec<_> = ports.iter().map(|p| format!("\"nats://127.0.0.1:{}\"", p.cluster)).collect();
                let sync = if always { "sync_interval: always" } else { "" };
                let config = format!(
                    "server_name: {name}\nlisten: 127.0.0.1:{client}\nhttp: 127.0.0.1:{http}\n\
                     jetstream {{ store_dir: \"{}\", max_file: 8GB\n {sync} }}\n\
                     cluster {{ name: C, listen: 127.0.0.1:{cluster}, routes: [{}] }}\n",
                    store.display(),
                    routes.join(", ")
                );
                let file = dir.join("server.conf");
                File::create(&file)?.write_all(config.as_bytes())?;
                let mut command = Command::new(path);
                command.arg("-c").arg(file);
                Ok(command)
            }
        }
    }
}

fn beside_test() -> anyhow::Result<PathBuf> {
    // .../target/<profile>/deps/<test>-<hash>
    let test = std::env::current_exe()?;
    let profile = test.parent().and_then(Path::parent).context("the test runs outside a target directory")?;
    let target = profile.parent().context("the test runs outside a target directory")?;
    let places = [profile.to_owned(), target.join("debug"), target.join("release")];
    match places.iter().map(|dir| dir.join("headwater")).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!(
            "no headwater binary to test: build it (cargo build -p headwater) or set HEADWATER_BIN; looked in {}",
            places.map(|dir| dir.display().to_string()).join(", ")
        ),
    }
}
