//! Which requests are answered: names of hosts, headers that keep browsers careful, time, and tokens.
//!
//! A page elsewhere can make a browser send requests to loopback under a name of its own (DNS rebinding) and then read
//! the answers. Such requests carry that name, so only our own names are answered. An address written as numbers cannot
//! be rebound.

use crate::app::{App, Trouble};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

/// Scripts and styles come from this server alone, and nothing is loaded from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Names that this server answers to.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// Whether other machines may ask.
    pub(crate) remote: bool,
    /// The host that it listens on, and the machine's names.
    pub(crate) names: Vec<String>,
}

impl Hosts {
    /// Whether a request with this `Host` is meant for us.
    pub(crate) fn accepts(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(""),
            None => host.split(':').next().unwrap_or(""),
        };
        match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || self.remote,
            Err(_) => {
                let ours = |own: &String| own.eq_ignore_ascii_case(name);
                name.eq_ignore_ascii_case("localhost")
                    || (self.remote && self.names.iter().any(ours))
            }
        }
    }
}

/// Who may read.
#[derive(Clone, Debug)]
pub(crate) enum Reading {
    /// Whoever reaches us.
    Anyone,
    /// Whoever knows the token, or has shown it before.
    Token {
        /// What people are told.
        token: String,
        /// The name of the cookie that a browser gets for it, and what is in it. Cookies go to all ports of a machine, so
        /// the token itself is not in there.
        cookie: (String, String),
    },
}

/// What a request has shown.
enum Shown {
    Nothing,
    /// A right token or cookie.
    Right,
    /// A right token in its address: a browser that should get a cookie.
    InAddress,
}

impl Reading {
    fn shown(&self, request: &Request) -> Shown {
        let Self::Token { token, cookie: (name, value) } = self else { return Shown::Right };
        let headers = request.headers();
        if bearer(headers).is_some_and(|given| same(given, token.as_bytes())) {
            return Shown::Right;
        }
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut cookies = cookies.filter_map(|c| c.to_str().ok()).flat_map(|c| c.split(';'));
        let is_ours = |cookie: &str| match cookie.trim().split_once('=') {
            Some((given, text)) => given == name && same(text.as_bytes(), value.as_bytes()),
            None => false,
        };
        if cookies.any(is_ours) {
            return Shown::Right;
        }
        let query = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
        let query = query.map(|Query(pairs)| pairs).unwrap_or_default();
        let is_token = |(key, given): &(String, String)| {
            key == "token" && same(given.as_bytes(), token.as_bytes())
        };
        if query.iter().any(is_token) { Shown::InAddress } else { Shown::Nothing }
    }

    /// The cookie for a browser that has shown the token. Scripts and other sites cannot use it.
    fn cookie(&self) -> Option<HeaderValue> {
        let Self::Token { cookie: (name, value), .. } = self else { return None };
        format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/").parse().ok()
    }
}

/// Refuses foreign names and whoever may not read, ends what takes too long, and adds headers to every answer.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let is_ours = host.is_some_and(|host| app.hosts.accepts(host));
    let mut response = match app.reading.shown(&request) {
        _ if !is_ours => (
            StatusCode::FORBIDDEN,
            "this name does not belong to this server: use the address that hadal serve printed\n",
        )
            .into_response(),
        Shown::Nothing => (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            "reading needs the token: open the address that hadal serve printed, which ends in \
             ?token=.., or send Authorization: Bearer ..\n",
        )
            .into_response(),
        shown => {
            let answer = tokio::time::timeout(app.limits.request, next.run(request)).await;
            let late = |_| Trouble::busy("this takes too long").into_response();
            let mut response = answer.unwrap_or_else(late);
            if let (Shown::InAddress, Some(cookie)) = (shown, app.reading.cookie()) {
                response.headers_mut().insert(header::SET_COOKIE, cookie);
            }
            response
        }
    };
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(header::CACHE_CONTROL, "no-store");
    response
}

/// Why writing is refused, if it is.
pub(crate) fn refuse_write(
    token: Option<&str>,
    headers: &HeaderMap,
) -> Option<(StatusCode, &'static str)> {
    let Some(token) = token else {
        let message = "writing is off: start hadal serve with --token to turn it on";
        return Some((StatusCode::FORBIDDEN, message));
    };
    match bearer(headers) {
        Some(given) if same(given, token.as_bytes()) => None,
        _ => Some((StatusCode::UNAUTHORIZED, "the token is missing or wrong")),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// Takes the same time wherever two texts differ.
fn same(given: &[u8], token: &[u8]) -> bool {
    let mut difference = u8::from(given.len() != token.len());
    for (place, byte) in token.iter().enumerate() {
        difference |= byte ^ given.get(place).copied().unwrap_or(0);
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_answers_to_its_own_names_alone() {
        let hosts = Hosts { remote: false, names: vec!["box".into()] };
        for ours in ["localhost", "LOCALHOST:80", "127.0.0.1:7117", "[::1]:7117", "[::1]"] {
            assert!(hosts.accepts(ours), "{ours}");
        }
        let foreign =
            ["", "evil.example:7117", "localhost.evil.example", "box", "192.168.1.5:7117"];
        for foreign in foreign.into_iter().chain(["[", "[::2]", "127.0.0.1.evil.example"]) {
            assert!(!hosts.accepts(foreign), "{foreign}");
        }
    }

    #[test]
    fn others_may_use_numbers_and_the_machines_name_but_no_foreign_name() {
        let hosts = Hosts { remote: true, names: vec!["box".into()] };
        for ours in ["box:7117", "192.168.1.5:7117", "[fe80::1]:7117", "localhost"] {
            assert!(hosts.accepts(ours), "{ours}");
        }
        assert!(!hosts.accepts("evil.example"));
    }

    #[test]
    fn a_token_is_right_only_as_a_whole() {
        let header = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            headers
        };
        assert!(refuse_write(Some("secret"), &header("Bearer secret")).is_none());
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer ", "secret", "Bearer Secret"] {
            assert!(refuse_write(Some("secret"), &header(wrong)).is_some(), "{wrong}");
        }
        assert!(refuse_write(Some("secret"), &HeaderMap::new()).is_some());
        assert!(refuse_write(None, &header("Bearer secret")).is_some());
    }
}
