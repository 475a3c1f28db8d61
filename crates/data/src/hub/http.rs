//! Requests: the token only for the hub itself, redirects, retries where they may help.

use super::error::RequestError;
use super::settings::Settings;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::thread::sleep;
use std::time::Duration;
use ureq::http::{Response, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy};

const CONNECTING: Duration = Duration::from_secs(30);
/// A server that sends nothing for this long will not continue.
const SILENCE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const REDIRECTS: usize = 10;

/// What is missing if the server does not know a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked<'a> {
    Repository,
    Revision(&'a str),
    Entry,
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get {
        /// The first byte that is wanted.
        from: u64,
    },
    /// Only the hub's own answer: where it redirects, the answer already describes the file.
    Head,
}

/// A client of one server.
pub(super) struct Http {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    retries: u32,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Self {
        // The system's certificates, which include those of company proxies.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder()
            .user_agent(concat!("hadal/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .proxy(proxy(&settings.endpoint))
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECTING))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build()
            .new_agent();
        let Settings { endpoint, token, retries, .. } = settings.clone();
        Self { agent, endpoint, token, retries }
    }

    /// The answer to a request that succeeded or (only for [`Method::Head`]) was redirected.
    pub(super) fn send(
        &self,
        method: Method,
        url: &str,
        asked: Asked<'_>,
    ) -> Result<Response<Body>, RequestError> {
        let mut pause = FIRST_PAUSE;
        for _ in 0..self.retries {
            match self.send_once(method, url, asked) {
                Err(error) if error.is_passing() => sleep(pause),
                outcome => return outcome,
            }
            pause *= 2;
        }
        self.send_once(method, url, asked)
    }

    fn send_once(
        &self,
        method: Method,
        url: &str,
        asked: Asked<'_>,
    ) -> Result<Response<Body>, RequestError> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS {
            let response = self.send_to(method, &url)?;
            if !response.status().is_redirection() {
                return checked(response, &url, asked);
            }
            let Some(location) = text(&response, header::LOCATION.as_str()) else {
                return checked(response, &url, asked);
            };
            let next = joined(&url, location);
            if method == Method::Head && origin(&next) != origin(&url) {
                return Ok(response);
            }
            url = next;
        }
        Err(RequestError::Unusable { url, reason: "it is redirected too often".into() })
    }

    fn send_to(&self, method: Method, url: &str) -> Result<Response<Body>, RequestError> {
        let mut request = match method {
            Method::Get { .. } => self.agent.get(url),
            Method::Head => self.agent.head(url),
        };
        if let Method::Get { from: from @ 1.. } = method {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        // Files are often on other servers, which must not see the token.
        if let Some(token) = &self.token
            && origin(url) == origin(&self.endpoint)
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|error| RequestError::Unreachable(error.to_string()))
    }

    /// A list or an object, and where the list continues.
    pub(super) fn json<T: DeserializeOwned>(
        &self,
        url: &str,
        asked: Asked<'_>,
    ) -> Result<(T, Option<String>), RequestError> {
        let response = self.send(Method::Get { from: 0 }, url, asked)?;
        let next = text(&response, header::LINK.as_str()).and_then(next_page);
        let mut body = Vec::new();
        let mut reader = response.into_body().into_reader();
        reader
            .read_to_end(&mut body)
            .map_err(|error| RequestError::Unreachable(error.to_string()))?;
        let value = serde_json::from_slice(&body).map_err(|error| RequestError::Unusable {
            url: url.into(),
            reason: error.to_string(),
        })?;
        Ok((value, next.map(|next| joined(url, &next))))
    }
}

/// A header as text.
pub(super) fn text<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn checked(
    response: Response<Body>,
    url: &str,
    asked: Asked<'_>,
) -> Result<Response<Body>, RequestError> {
    let status = response.status().as_u16();
    if response.status().is_success() {
        return Ok(response);
    }
    // The hub states what is missing; mirrors may not.
    let missing = match (text(&response, "x-error-code"), asked) {
        (Some("RepoNotFound"), _) | (_, Asked::Repository) => RequestError::NoRepository,
        (Some("EntryNotFound"), _) | (_, Asked::Entry) => RequestError::NoEntry,
        (_, Asked::Revision(revision)) => RequestError::NoRevision(revision.into()),
    };
    Err(match status {
        401 => RequestError::Unauthorized,
        403 => RequestError::Forbidden,
        404 => missing,
        _ => RequestError::Refused {
            status,
            url: url.into(),
            message: text(&response, "x-error-message").unwrap_or_default().into(),
        },
    })
}

/// Scheme, host and port.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Where a link on a page leads.
fn joined(page: &str, link: &str) -> String {
    if link.contains("://") {
        link.into()
    } else if link.starts_with("//") {
        let scheme = page.split_once("//").map_or("https:", |(scheme, _)| scheme);
        format!("{scheme}{link}")
    } else if link.starts_with('/') {
        format!("{}{link}", origin(page))
    } else {
        let path = page.split(['?', '#']).next().unwrap_or(page);
        let (origin, path) = path.split_at(origin(page).len());
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{origin}{folder}/{link}")
    }
}

/// `<address>; rel="next"` among the links of a header.
fn next_page(links: &str) -> Option<String> {
    let link = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    Some(link.split_once('<')?.1.split_once('>')?.0.to_owned())
}

/// A name inside a URL; slashes stay in the path of a file, but not in the name of a revision.
pub(super) fn encoded(name: &str, slashes: bool) -> String {
    let mut url = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (slashes && byte == b'/') {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}

/// The environment's proxy for this scheme, if there is one.
fn proxy(endpoint: &str) -> Option<Proxy> {
    let own = if endpoint.starts_with("https://") { "HTTPS_PROXY" } else { "HTTP_PROXY" };
    let is_set = |name: &str| {
        std::env::var_os(name).is_some() || std::env::var_os(name.to_lowercase()).is_some()
    };
    if is_set(own) || is_set("ALL_PROXY") { Proxy::try_from_env() } else { None }
}
