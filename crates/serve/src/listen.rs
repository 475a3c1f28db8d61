//! Accepting connections: only so many, and none that keeps us waiting.

use crate::limits::Limits;
use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

/// How long answers under way may take when the server ends.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);
/// Before connections are accepted again when the system has none to give.
const RECOVERY: Duration = Duration::from_millis(100);
/// A request's head, in bytes.
const HEAD: usize = 32 << 10;

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n\
    Content-Type: text/plain\r\nContent-Length: 21\r\n\r\ntoo many connections\n";

/// Serves until `ending` turns true, and a moment longer for answers under way.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    ending: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut end = pin!(ended(ending.clone()));
    loop {
        let stream = match select(pin!(listener.accept()), end.as_mut()).await {
            Either::Right(_) => break,
            Either::Left((Ok((stream, _)), _)) => stream,
            Either::Left((Err(_), _)) => {
                // The other side is gone already, or there are no descriptors left.
                sleep(RECOVERY).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(stream);
            continue;
        };
        let (router, limits, ending) = (router.clone(), limits.clone(), ending.clone());
        tokio::spawn(async move {
            let _place = place;
            serve(stream, router, &limits, ending).await;
        });
    }
    drop(listener);
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let _ = timeout(LAST_WORDS, places.acquire_many(all)).await;
}

/// Waits for the end.
async fn ended(mut ending: watch::Receiver<bool>) {
    let _ = ending.wait_for(|ending| *ending).await;
}

async fn serve(stream: TcpStream, router: Router, limits: &Limits, ending: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD);
    let stream = TokioIo::new(Impatient { stream, patience: limits.answer, deadline: None });
    let connection = builder.serve_connection(stream, TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // Whatever went wrong with a connection is the client's trouble.
    if let Either::Right(_) = select(connection.as_mut(), pin!(ended(ending))).await {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(LAST_WORDS, connection).await;
    }
}

/// Says that there are too many, as far as that is possible without waiting.
fn refuse(stream: TcpStream) {
    let Ok(mut stream) = stream.into_std() else { return };
    // What was not read would make the system take the answer back.
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write(BUSY);
    let _ = stream.shutdown(Shutdown::Write);
}

/// A connection whose other side must take in time what is written to it.
struct Impatient {
    stream: TcpStream,
    patience: Duration,
    /// Set while something waits to be taken.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => Poll::Pending,
            written => written,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => Poll::Pending,
            written => written,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Comes when everything was written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.deadline = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
