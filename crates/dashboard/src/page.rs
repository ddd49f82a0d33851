//! What is answered to which request: the page, its assets, the API. Every answer forbids the
//! browser to load or run anything from elsewhere, and a request that names another host is
//! refused: a page of the internet that a name leads here must not read it.

use crate::Source;
use crate::collector::Collector;
use downpour_net::{HttpAnswer, HttpHandler, HttpRequest};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

/// The assets: path, kind, content. They are part of the program.
const ASSETS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../assets/index.html")),
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("../assets/style.css"),
    ),
    (
        "/app.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/app.js"),
    ),
    (
        "/charts.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/charts.js"),
    ),
    ("/runs", HTML, include_str!("../assets/runs.html")),
    (
        "/runs.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/runs.js"),
    ),
    (
        "/topology.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/topology.js"),
    ),
    (
        "/timeline.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/timeline.js"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
];

/// Nothing but what this server serves, and no script or style inside the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Name of the cookie that holds the token.
const COOKIE: &str = "downpour-dashboard";

/// Answers requests from what a collector knows.
pub(crate) fn handler(source: Source, address: SocketAddr, token: Option<String>) -> HttpHandler {
    Arc::new(move |request| {
        let mut answer = match refusal(request, address, token.as_deref()) {
            Some(refusal) => refusal,
            None => answer(&source, request),
        };
        let headers = [
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("X-Frame-Options", "DENY"),
            ("Cache-Control", "no-store"),
        ];
        let headers = headers.map(|(name, value)| (name, value.to_owned()));
        answer.headers.extend(headers);
        answer
    })
}

/// What is said to those who get nothing.
fn refusal(request: &HttpRequest, address: SocketAddr, token: Option<&str>) -> Option<HttpAnswer> {
    let Some(token) = token else {
        let host = request.header("host").unwrap_or_default();
        let refused = || HttpAnswer::text(403, "this host is not served here");
        return (!is_own(host, address)).then(refused);
    };
    // Whoever knows the token has a right to be here, by whatever name.
    if request.parameter("token").is_some_and(|t| same(t, token)) {
        let mut answer = HttpAnswer::text(303, "");
        let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/");
        answer.headers.push(("Set-Cookie", cookie));
        answer.headers.push(("Location", "/".to_owned()));
        return (request.path == "/").then_some(answer);
    }
    let bearer = request.header("authorization");
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let mut cookies = request.header("cookie").unwrap_or_default().split("; ");
    let cookie = cookies.find_map(|c| c.strip_prefix(COOKIE)?.strip_prefix('='));
    let known = bearer.or(cookie).is_some_and(|t| same(t, token));
    (!known).then(|| HttpAnswer::text(401, "open the address that was printed, with its token"))
}

/// Whether two secrets are the same, without telling by time how much of them is.
fn same(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
    a.len() == b.len() && differences == 0
}

/// Whether a `Host` header means this server on the loopback interface.
fn is_own(host: &str, address: SocketAddr) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            if port.parse() != Ok(address.port()) {
                return false;
            }
            name
        }
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

fn answer(source: &Source, request: &HttpRequest) -> HttpAnswer {
    if let Some((_, kind, content)) = ASSETS.iter().find(|(path, ..)| *path == request.path) {
        return HttpAnswer::new(200, kind, *content);
    }
    match source {
        Source::One(_) if request.path == "/api/runs" => HttpAnswer::new(200, JSON, "null"),
        Source::One(collector) => figures(collector, request),
        Source::Runs(runs) if request.path == "/api/runs" => {
            match serde_json::to_string(&runs.shown()) {
                Ok(shown) => HttpAnswer::new(200, JSON, shown),
                Err(e) => HttpAnswer::text(503, &e.to_string()),
            }
        }
        Source::Runs(runs) => match request.parameter("run").and_then(|id| runs.collector(id)) {
            Some(collector) => figures(&collector, request),
            None => HttpAnswer::text(404, "there is no such run; /api/runs lists them"),
        },
    }
}

/// Whether a browser asks on behalf of a page from elsewhere. Unlike figures, which such a page cannot read, recording
/// steps has an effect.
fn is_of_another_page(request: &HttpRequest) -> bool {
    let site = request.header("sec-fetch-site");
    site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

fn figures(collector: &Arc<Collector>, request: &HttpRequest) -> HttpAnswer {
    let number = |name: &str| request.parameter(name).and_then(|n| n.parse::<u64>().ok());
    match request.path.as_str() {
        "/api/state" => {
            let shows_end = request.parameter("shows") == Some("end");
            let page = request.parameter("page");
            HttpAnswer::new(200, JSON, collector.state_for_page(page, shows_end))
        }
        "/api/samples" => {
            HttpAnswer::new(200, JSON, collector.samples(number("since").unwrap_or(0)))
        }
        "/api/scalars" => HttpAnswer::new(200, JSON, collector.scalars(number("seen"))),
        "/api/timeline" => HttpAnswer::new(200, JSON, collector.timeline()),
        "/api/record" => match is_of_another_page(request) {
            true => HttpAnswer::text(403, "only the dashboard's own page records steps"),
            false => {
                collector.record();
                HttpAnswer::new(200, JSON, "{}")
            }
        },
        "/api/logs" => HttpAnswer::new(200, JSON, collector.logs(number("since").unwrap_or(0))),
        "/metrics" => HttpAnswer::new(
            200,
            "text/plain; version=0.0.4; charset=utf-8",
            collector.metrics(),
        ),
        _ => HttpAnswer::text(404, "there is no such page"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;

    fn ask(target: &str, headers: &[(&str, &str)], token: Option<&str>) -> HttpAnswer {
        let collector = Arc::new(Collector::new(Subject::default()));
        let address = "127.0.0.1:6006".parse().unwrap();
        let handler = handler(Source::One(collector), address, token.map(str::to_owned));
        handler(&HttpRequest::get(target, headers))
    }

    #[test]
    fn every_answer_forbids_what_comes_from_elsewhere() {
        for target in [
            "/",
            "/api/state",
            "/metrics",
            "/nothing",
            "/../etc/passwd",
            "/..%2f",
        ] {
            let answer = ask(target, &[("Host", "localhost:6006")], None);
            let header = |name: &str| answer.headers.iter().find(|(n, _)| *n == name);
            let policy = &header("Content-Security-Policy").unwrap().1;
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
            assert!(!policy.contains("unsafe"));
            assert_eq!(header("X-Content-Type-Options").unwrap().1, "nosniff");
            let known = matches!(target, "/" | "/api/state" | "/metrics");
            assert_eq!(answer.status, if known { 200 } else { 404 }, "{target}");
        }
    }

    #[test]
    fn a_host_that_is_not_this_one_is_refused() {
        for (host, status) in [
            ("127.0.0.1:6006", 200),
            ("localhost:6006", 200),
            ("LOCALHOST", 200),
            ("[::1]:6006", 200),
            ("127.8.9.1", 200),
            ("evil.example:6006", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1:80", 403),
            ("127.0.0.1.evil.example:6006", 403),
            ("", 403),
        ] {
            let answer = ask("/api/state", &[("Host", host)], None);
            assert_eq!(answer.status, status, "{host}");
        }
    }

    #[tokio::test]
    async fn a_page_from_elsewhere_records_no_steps() {
        for (site, status) in [
            ("cross-site", 403),
            ("same-site", 403),
            ("same-origin", 200),
            ("none", 200),
        ] {
            let headers = [("Host", "localhost:6006"), ("Sec-Fetch-Site", site)];
            let answer = ask("/api/record", &headers, None);
            assert_eq!(answer.status, status, "{site}");
        }
    }

    #[test]
    fn others_need_the_token() {
        let host = ("Host", "10.0.0.5:6006");
        let status =
            |target: &str, headers: &[(&str, &str)]| ask(target, headers, Some("s3")).status;
        assert_eq!(status("/api/state", &[host]), 401);
        assert_eq!(
            status("/api/state", &[host, ("Authorization", "Bearer s3")]),
            200
        );
        assert_eq!(
            status("/api/state", &[host, ("Authorization", "Bearer s4")]),
            401
        );
        assert_eq!(status("/?token=wrong", &[host]), 401);
        let cookie = ("Cookie", "a=b; downpour-dashboard=s3");
        assert_eq!(status("/api/state", &[host, cookie]), 200);
        let answer = ask("/?token=s3", &[host], Some("s3"));
        assert_eq!(answer.status, 303);
        assert!(answer.headers.iter().any(|(n, _)| *n == "Set-Cookie"));
    }

    #[test]
    fn the_page_names_nothing_outside_itself() {
        for (path, _, content) in ASSETS {
            let namespace = content.replace("http://www.w3.org/", "");
            for word in [
                "http://",
                "https://",
                "//cdn",
                "innerHTML",
                "insertAdjacentHTML",
                "eval(",
            ] {
                assert!(!namespace.contains(word), "{path} has {word}");
            }
        }
        let (_, _, html) = ASSETS[0];
        assert!(!html.contains(" style=") && !html.contains(" onclick"));
    }
}
