use crate::support::{Site, run};
use hadal_serve::{Options, ServeError, Server};
use std::fs;

#[test]
fn names_that_are_not_ours_are_not_answered() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 10)));
    let ask = |host: &str| {
        let request = format!("GET /api/runs HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        site.ask(&request).status
    };
    assert_eq!(ask("Host: localhost:7117\r\n"), 200);
    assert_eq!(ask("Host: 127.0.0.1\r\n"), 200);
    assert_eq!(ask("Host: evil.example\r\n"), 403);
    assert_eq!(ask("Host: 10.0.0.1\r\n"), 403);
    assert_ne!(ask(""), 200);
}

#[test]
fn every_answer_forbids_foreign_scripts() {
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 10)));
    for path in ["/", "/runs/mine", "/compare?run=mine", "/api/runs", "/assets/chart.js", "/none"] {
        let head = site.get(path).head;
        assert!(
            head.contains("content-security-policy: default-src 'none'; script-src 'self'"),
            "{path}: {head}"
        );
        assert!(head.contains("x-content-type-options: nosniff"), "{path}: {head}");
        assert!(!head.contains("access-control-allow-origin"), "{path}: {head}");
    }
    let page = site.get("/").body;
    assert!(!page.contains("http://") && !page.contains("https://"), "a page reaches out");
}

#[test]
fn no_address_leads_out_of_the_folder() {
    let site = Site::new(|root| {
        run(root, "inside/mine", "mgr", 10);
        fs::write(root.join("secret.txt"), "secret").unwrap();
    });
    let outside = [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "inside%2f..%2f..%2f..%2fetc",
        "%2fetc",
        "inside",
        "inside%2fmine%2f",
        ".%2finside%2fmine",
        "inside%5cmine",
        "%00",
        "%ff%fe",
        "secret.txt",
    ];
    for id in outside {
        for path in [
            "/runs/{}",
            "/api/runs/{}",
            "/api/runs/{}/series",
            "/api/runs/{}/events",
            "/suites/{}",
            "/assets/{}",
        ] {
            let path = path.replace("{}", id);
            let status = site.get(&path).status;
            assert!(status == 404 || status == 400, "{path}: {status}");
        }
    }
    assert_eq!(site.get("/api/runs/inside%2Fmine").status, 200);
    assert_eq!(site.get("/../../etc/passwd").status, 404);
}

#[test]
fn odd_names_and_broken_runs_are_shown_as_text() {
    let names = [
        "<script>alert(1)</script>".replace('/', ""),
        "a b ü 日本".into(),
        "\"onload='x' &amp;".into(),
        "...".into(),
        "100%".into(),
    ];
    let site = Site::new(|root| {
        for name in &names {
            run(root, name, "mgr", 10);
        }
        let folder = run(root, "broken", "mgr", 10);
        fs::write(folder.join("config.toml"), "<i>\n").unwrap();
        let folder = run(root, "damaged", "mgr", 10);
        fs::write(folder.join("metrics.jsonl"), "<i>\n").unwrap();
        let folder = run(root, "policy", "<u>x</u>", 10);
        fs::write(folder.join("note.txt"), "<u>note").unwrap();
    });
    let page = site.get("/").body;
    assert!(
        !page.contains("<script>alert") && !page.contains("<u>") && !page.contains("<i>"),
        "{page}"
    );
    assert!(page.contains("metrics.jsonl is damaged"), "{page}");
    for part in page.split("href=\"/runs/").skip(1) {
        let id = part.split('"').next().unwrap();
        if id.starts_with('.') {
            continue;
        }
        assert_eq!(site.get(&format!("/runs/{id}")).status, 200, "{id}");
        assert!(site.get(&format!("/api/runs/{id}/series")).status != 404, "{id}");
    }
    let broken = site.get("/runs/broken").body;
    assert!(broken.contains("This run cannot be read") && !broken.contains("<i>"), "{broken}");
    assert_eq!(site.get("/api/runs/broken").status, 422);
}

#[test]
fn notes_need_the_token_and_nothing_else_can_be_written() {
    let put = |site: &Site, token: &str, body: &str| {
        site.ask(&format!(
            "PUT /api/runs/mine/note HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    let right = "Authorization: Bearer open sesame\r\n";
    let site = Site::new(|root| drop(run(root, "mine", "mgr", 10)));
    assert_eq!(put(&site, right, "{\"text\":\"x\"}").status, 403);
    let site = Site::with_token(Some("open sesame"), |root| drop(run(root, "mine", "mgr", 10)));
    let file = site.folder.path().join("mine/note.txt");
    assert_eq!(put(&site, "", "{\"text\":\"x\"}").status, 401);
    assert_eq!(put(&site, "Authorization: Bearer open\r\n", "{\"text\":\"x\"}").status, 401);
    assert_eq!(put(&site, right, "text").status, 400);
    assert_eq!(put(&site, right, &format!("{{\"text\":\"{}\"}}", "x".repeat(5000))).status, 400);
    assert!(!file.exists());
    let answer = put(&site, right, "{\"text\":\"try a lower rate\"}");
    assert_eq!(
        (answer.status, fs::read_to_string(&file).unwrap().trim()),
        (200, "try a lower rate")
    );
    assert_eq!(put(&site, right, "{\"text\":\"\"}").status, 200);
    assert!(!file.exists());
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/", "/api/runs", "/api/runs/mine", "/runs/mine", "/api/suites"] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{right}Connection: close\r\n\r\n"
            );
            assert_eq!(site.ask(&request).status, 405, "{method} {path}");
        }
    }
}

/// A server that other machines can reach, with one run.
pub(crate) fn remote(change: impl FnOnce(&mut Options)) -> Site {
    let change = |options: &mut Options| {
        options.host = "0.0.0.0".into();
        options.allow_remote = true;
        change(options);
    };
    Site::with(change, |root| drop(run(root, "mine", "mgr", 10)))
}

fn status(site: &Site, path: &str, header: &str) -> u16 {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    site.ask(&format!("{head}{header}\r\n")).status
}

#[test]
fn other_machines_need_a_token_to_read() {
    let site = remote(|_| ());
    let token = site.server.url().split_once("?token=").unwrap().1.to_owned();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let paths =
        ["/", "/api/runs", "/runs/mine", "/api/runs/mine/events", "/assets/chart.js", "/no"];
    for path in paths {
        assert_eq!(status(&site, path, ""), 401, "{path}");
        assert_eq!(status(&site, path, "Cookie: hadal=; a=b\r\n"), 401, "{path}");
    }
    let wrong = &token[1..];
    assert_eq!(status(&site, &format!("/?token={wrong}"), ""), 401);
    assert_eq!(status(&site, "/", &format!("Authorization: Bearer {wrong}\r\n")), 401);
    assert_eq!(status(&site, "/", &format!("Authorization: Bearer {token}\r\n")), 200);
    let head = site.get(&format!("/?token={token}")).head;
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let (cookie, rest) = cookie.split_once(';').unwrap();
    assert!(rest.contains("httponly") && rest.contains("samesite=strict"), "{rest}");
    assert!(!cookie.contains(&token), "the token is in the cookie");
    for path in ["/", "/api/runs", "/runs/mine"] {
        assert_eq!(status(&site, path, &format!("Cookie: a=b; {cookie}\r\n")), 200, "{path}");
    }
    // Reading is not writing.
    let put = "PUT /api/runs/mine/note HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
    assert_eq!(site.ask(&format!("{put}Cookie: {cookie}\r\n\r\n")).status, 403);
    assert_eq!(site.ask(&format!("{put}Authorization: Bearer {token}\r\n\r\n")).status, 403);
}

#[test]
fn a_given_token_is_used_and_none_is_needed_if_that_is_said() {
    let site = remote(|options| options.token = Some("open sesame".into()));
    assert!(site.server.url().ends_with("/?token=open%20sesame"), "{}", site.server.url());
    assert_eq!(status(&site, "/?token=open%20sesame", ""), 200);
    assert_eq!(status(&site, "/", "Authorization: Bearer open sesame\r\n"), 200);
    assert_eq!(status(&site, "/", ""), 401);
    let site = remote(|options| options.without_token = true);
    assert!(!site.server.url().contains("token"));
    assert_eq!(status(&site, "/", ""), 200);
}

fn refused(options: Options) -> ServeError {
    Server::bind(options).err().expect("it was not refused")
}

#[test]
fn other_machines_are_refused_unless_told() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { port: 0, ..Options::new(folder.path()) };
    for host in ["0.0.0.0", "::", "[::]"] {
        let error = refused(Options { host: host.into(), ..options.clone() });
        assert!(error.to_string().contains("--allow-remote"), "{error}");
        assert!(error.is_usage());
    }
    let remote = Options { host: "0.0.0.0".into(), allow_remote: true, ..options.clone() };
    assert!(Server::bind(remote).unwrap().url().starts_with("http://localhost:"));
    let local = Options { host: "localhost".into(), ..options };
    assert!(Server::bind(local).is_ok());
}

#[test]
fn what_cannot_be_served_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { port: 0, ..Options::new(folder.path()) };
    let first = Server::bind(options.clone()).unwrap();
    let port = first.address().port();
    let error = refused(Options { port, ..options.clone() });
    assert_eq!(
        error.to_string(),
        format!(
            "port {port} of 127.0.0.1 is in use: choose another with --port, or any free one with --port 0"
        )
    );
    let error = refused(Options::new(folder.path().join("none")));
    assert!(error.to_string().contains("is not a folder"), "{error}");
    let error = refused(Options { token: Some("  ".into()), ..options });
    assert!(error.to_string().contains("token is empty"), "{error}");
}
