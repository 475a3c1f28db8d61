//! Listening, and shutting down cleanly.

use crate::app::{App, router};
use crate::guard::Hosts;
use std::future::IntoFuture;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The default host: this machine alone.
pub const DEFAULT_HOST: &str = "127.0.0.1";
/// The default port.
pub const DEFAULT_PORT: u16 = 7117;
/// How long answers under way may take when the server ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What to serve, and which machines and requests may see or change it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of runs.
    pub root: PathBuf,
    /// A name or an address of this machine.
    pub host: String,
    /// 0 is any free one.
    pub port: u16,
    /// Whether other machines may look.
    pub allow_remote: bool,
    /// The token that allows leaving notes; without one no request may.
    pub token: Option<String>,
}

impl Options {
    /// Serves a folder read-only, to this machine alone.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            host: DEFAULT_HOST.into(),
            port: DEFAULT_PORT,
            allow_remote: false,
            token: None,
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ServeError {
    /// The folder does not exist.
    #[error("{} is not a folder: name the one that holds runs, such as runs", path.display())]
    NoFolder { path: PathBuf },
    /// Other machines could read the runs.
    #[error(
        "{host} can be reached from other machines, and whoever can reach it can read these runs: \
         add --allow-remote if that is meant, or leave out --host"
    )]
    Remote { host: String },
    /// The host is unknown.
    #[error("cannot listen on {host}: {reason}")]
    Host { host: String, reason: io::Error },
    /// Another program listens there.
    #[error(
        "port {port} of {host} is in use: choose another with --port, or any free one with --port 0"
    )]
    InUse { host: String, port: u16 },
    /// An empty token is no protection.
    #[error("the token is empty: give one with --token, or leave it out to serve read-only")]
    EmptyToken,
    /// The system does not allow it.
    #[error("cannot start the server: {0}")]
    Start(io::Error),
}

impl ServeError {
    /// Whether other arguments would help.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Start(_))
    }
}

/// A server that is already listening.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    end: watch::Sender<bool>,
}

impl Server {
    /// Checks the options, starts to listen and reads the folder.
    pub fn bind(options: Options) -> Result<Self, ServeError> {
        if !options.root.is_dir() {
            return Err(ServeError::NoFolder { path: options.root });
        }
        if options.token.as_ref().is_some_and(|token| token.trim().is_empty()) {
            return Err(ServeError::EmptyToken);
        }
        let addresses = resolve(&options.host, options.port)?;
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        if !is_local && !options.allow_remote {
            return Err(ServeError::Remote { host: options.host });
        }
        let listener = TcpListener::bind(addresses.as_slice()).map_err(|reason| {
            match (reason.kind(), options.host.clone()) {
                (io::ErrorKind::AddrInUse, host) => ServeError::InUse { host, port: options.port },
                (_, host) => ServeError::Host { host, reason },
            }
        })?;
        listener.set_nonblocking(true).map_err(ServeError::Start)?;
        let address = listener.local_addr().map_err(ServeError::Start)?;
        let hosts = Hosts { remote: !is_local, names: names(&options.host) };
        let (end, ending) = watch::channel(false);
        let app = Arc::new(App::new(options.root, hosts, options.token, ending));
        Ok(Self { listener, address, app, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for a browser on this machine.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let port = self.address.port();
        match ip {
            ip if ip.is_unspecified() => format!("http://localhost:{port}/"),
            std::net::IpAddr::V6(ip) => format!("http://[{ip}]:{port}/"),
            std::net::IpAddr::V4(ip) => format!("http://{ip}:{port}/"),
        }
    }

    /// The folder of runs.
    pub fn root(&self) -> &Path {
        &self.app.root
    }

    /// Number of runs in the folder at the moment.
    pub fn runs(&self) -> usize {
        self.app.catalogue().runs().count()
    }

    /// Serves until Ctrl-C or SIGTERM.
    pub fn run(self) -> Result<(), ServeError> {
        self.serve(true)
    }

    /// Serves on a thread of its own until the handle is dropped.
    pub fn spawn(self) -> Handle {
        let (url, address) = (self.url(), self.address);
        let end = self.end.clone();
        let thread = std::thread::spawn(move || self.serve(false));
        Handle { url, address, end, thread: Some(thread) }
    }

    fn serve(self, signals: bool) -> Result<(), ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(ServeError::Start)?;
        let Self { listener, app, end, .. } = self;
        let ended = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let wait = |mut ending: watch::Receiver<bool>| async move {
                let _ = ending.wait_for(|ending| *ending).await;
            };
            let ending = app.ending.clone();
            if signals {
                tokio::spawn(async move {
                    interrupted().await;
                    let _ = end.send(true);
                });
            }
            let server = axum::serve(listener, router(app));
            let server = server.with_graceful_shutdown(wait(ending.clone())).into_future();
            let server = tokio::spawn(server);
            wait(ending).await;
            let _ = tokio::time::timeout(LAST_WORDS, server).await;
            Ok(())
        });
        runtime.shutdown_timeout(LAST_WORDS);
        ended.map_err(ServeError::Start)
    }
}

/// A server on another thread. Dropping it ends the server.
pub struct Handle {
    url: String,
    address: SocketAddr,
    end: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<Result<(), ServeError>>>,
}

impl Handle {
    /// The address for a browser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.end.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ServeError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let failed = |reason| ServeError::Host { host: host.into(), reason };
    let addresses: Vec<_> = (bare, port).to_socket_addrs().map_err(failed)?.collect();
    if addresses.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(addresses)
}

/// Names that other machines may use for this one.
fn names(host: &str) -> Vec<String> {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = own.trim();
    let mut names = vec![host.to_owned()];
    if !own.is_empty() {
        names.extend([own.to_owned(), format!("{own}.local")]);
    }
    names
}

#[cfg(unix)]
async fn interrupted() {
    use futures_util::future::select;
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).ok();
    match (listen(SignalKind::interrupt()), listen(SignalKind::terminate())) {
        (Some(mut interrupt), Some(mut terminate)) => {
            let (interrupt, terminate) = (Box::pin(interrupt.recv()), Box::pin(terminate.recv()));
            select(interrupt, terminate).await;
        }
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn interrupted() {
    let _ = tokio::signal::ctrl_c().await;
}
