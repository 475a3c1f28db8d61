//! Listening, and shutting down cleanly.

use crate::app::{App, router};
use crate::guard::{Hosts, Reading};
use crate::limits::{Limits, Work};
use crate::listen::{LAST_WORDS, listen};
use crate::pages::part;
use std::fmt::Write;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;

/// The default host: this machine alone.
pub const DEFAULT_HOST: &str = "127.0.0.1";
/// The host that stands for all of this machine's addresses.
pub const ALL_HOSTS: &str = "0.0.0.0";
/// The default port.
pub const DEFAULT_PORT: u16 = 7117;

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
    /// The token that allows leaving notes, and reading where other machines may look. Without one no request may leave
    /// notes, and a token for reading is made.
    pub token: Option<String>,
    /// Whether other machines may look without a token.
    pub without_token: bool,
    /// How much clients may use.
    pub limits: Limits,
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
            without_token: false,
            limits: Limits::default(),
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
        "{host} can be reached from other machines: add --allow-remote if they may read these runs with a token, \
         or leave out --host"
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
        let reading = if is_local || options.without_token {
            Reading::Anyone
        } else {
            let token = options.token.clone().map_or_else(random, Ok).map_err(ServeError::Start)?;
            let name = format!("hadal-{}", address.port());
            Reading::Token { token, cookie: (name, random().map_err(ServeError::Start)?) }
        };
        let (end, ending) = watch::channel(false);
        let tokens = (options.token, reading);
        let app = App::new(options.root, hosts, tokens, options.limits, ending);
        let app = Arc::new(app.map_err(ServeError::Start)?);
        Ok(Self { listener, address, app, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for a browser on this machine, with the token for reading if one is needed.
    pub fn url(&self) -> String {
        match self.address.ip() {
            ip if ip.is_unspecified() => self.url_at("localhost"),
            ip => self.url_at(&in_url(ip)),
        }
    }

    /// The address for a browser on another machine in the same network, if others may look: with numbers if they are
    /// known, or else with this machine's name.
    pub fn url_for_others(&self) -> Option<String> {
        match self.address.ip() {
            ip if ip.is_loopback() => None,
            ip if ip.is_unspecified() => Some(match own_address() {
                Some(own) => self.url_at(&in_url(own)),
                None => self.url_at(self.app.hosts.names.last()?),
            }),
            ip => Some(self.url_at(&in_url(ip))),
        }
    }

    fn url_at(&self, host: &str) -> String {
        let mut url = format!("http://{host}:{}/", self.address.port());
        if let Reading::Token { token, .. } = &self.app.reading {
            let _ = write!(url, "?token={}", part(token));
        }
        url
    }

    /// The folder of runs.
    pub fn root(&self) -> &Path {
        &self.app.root
    }

    /// Number of runs in the folder at the moment.
    pub fn runs(&self) -> usize {
        self.app.keeper.latest().runs.len()
    }

    /// Why there is no index, if there is none. Pages work without one.
    pub fn index_trouble(&self) -> Option<String> {
        self.app.keeper.latest().index_trouble.clone()
    }

    /// Serves until Ctrl-C, SIGTERM or SIGHUP.
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
            .max_blocking_threads(Work::THREADS)
            .thread_name(format!("serve-{}", self.address.port()))
            .enable_all()
            .build()
            .map_err(ServeError::Start)?;
        let Self { listener, app, end, .. } = self;
        let served = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let ending = app.ending.clone();
            if signals {
                tokio::spawn(async move {
                    interrupted().await;
                    let _ = end.send(true);
                });
            }
            let limits = app.limits.clone();
            tokio::spawn(listen(listener, router(app), limits, ending)).await?;
            Ok(())
        });
        runtime.shutdown_timeout(LAST_WORDS);
        served.map_err(ServeError::Start)
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

/// An address as a part of a URL.
fn in_url(ip: IpAddr) -> String {
    match ip {
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
}

/// The address under which others in the network find this machine: the one that packets to the world would leave from.
/// None is sent; the address is one of those that are reserved for examples.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// A secret of 128 bits.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
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
    use futures_util::future::select_all;
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    // Whoever starts us with `nohup` wants us to stay.
    let kinds = kinds.into_iter().filter(|kind| !is_ignored(kind.as_raw_value()));
    let signals = kinds.filter_map(|kind| {
        let mut signal = signal(kind).ok()?;
        Some(Box::pin(async move { signal.recv().await }))
    });
    let signals: Vec<_> = signals.collect();
    if signals.is_empty() {
        std::future::pending().await
    }
    select_all(signals).await;
}

/// Whether a signal was ignored when this process was started.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(not(unix))]
async fn interrupted() {
    let _ = tokio::signal::ctrl_c().await;
}
