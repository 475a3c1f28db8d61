//! Which requests are answered: names of hosts, headers that keep browsers careful, and the token for writing.
//!
//! A page elsewhere can make a browser send requests to loopback under a name of its own (DNS rebinding) and then read
//! the answers. Such requests carry that name, so only our own names are answered. An address written as numbers cannot
//! be rebound.

use crate::app::App;
use axum::extract::{Request, State};
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

/// Refuses foreign names and adds headers to every answer.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let mut response = match host {
        Some(host) if app.hosts.accepts(host) => next.run(request).await,
        _ => (
            StatusCode::FORBIDDEN,
            "this name does not belong to this server: use the address that hadal serve printed\n",
        )
            .into_response(),
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
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| given.strip_prefix(b"Bearer "));
    match given {
        Some(given) if same(given, token.as_bytes()) => None,
        _ => Some((StatusCode::UNAUTHORIZED, "the token is missing or wrong")),
    }
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
