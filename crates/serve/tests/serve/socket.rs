//! The client side of a WebSocket (RFC 6455), as far as DevTools needs it. Crates for it would bring features
//! that make cargo build Burn a second time for the tests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const TEXT: u8 = 1;
const LAST: u8 = 0x80;
const MASKED: u8 = 0x80;

/// A connection that carries texts.
pub(crate) struct Socket(BufReader<TcpStream>);

impl Socket {
    /// Connects to `ws://HOST:PORT/PATH`.
    pub(crate) fn connect(address: &str, patience: Duration) -> io::Result<Self> {
        let rest = address.trim_start_matches("ws://");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(patience))?;
        // Any key will do: the derived answer protects against caches, of which there are none.
        write!(
            stream,
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )?;
        let mut reader = BufReader::new(stream);
        let mut status = String::new();
        reader.read_line(&mut status)?;
        if !status.contains(" 101 ") {
            return Err(io::Error::other(format!("no socket but {status}")));
        }
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        Ok(Self(reader))
    }

    /// Sends a text.
    pub(crate) fn send(&mut self, text: &str) -> io::Result<()> {
        let length = text.len();
        let mut frame = vec![LAST | TEXT];
        match length {
            0..126 => frame.push(MASKED | length as u8),
            126..=0xffff => {
                frame.push(MASKED | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(MASKED | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        // A mask of zeros leaves the text unchanged.
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.0.get_mut().write_all(&frame)
    }

    /// Waits for a text, which may come in several frames.
    pub(crate) fn read(&mut self) -> io::Result<String> {
        let mut text = Vec::new();
        loop {
            let [head, length] = self.bytes()?;
            let length = match length & !MASKED {
                126 => u64::from(u16::from_be_bytes(self.bytes()?)),
                127 => u64::from_be_bytes(self.bytes()?),
                short => u64::from(short),
            };
            let mut payload = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            self.0.read_exact(&mut payload)?;
            match head & !LAST {
                0 | TEXT => text.extend(payload),
                8 => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => continue,
            }
            if head & LAST != 0 {
                return String::from_utf8(text).map_err(io::Error::other);
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
