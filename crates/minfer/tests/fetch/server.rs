//! A server that does what a test tells it to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Where an open range starts.
    pub(crate) fn start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the header says about the length of the body.
#[derive(Clone, Copy)]
pub(crate) enum Length {
    True,
    Claimed(usize),
    /// The body ends with the connection.
    Unsaid,
    Chunked,
}

/// An answer.
#[derive(Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    length: Length,
    /// Body bytes that are sent; all if `None`.
    sent: Option<usize>,
    /// Whether the connection stays open, silent, after that.
    stalls: bool,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        let body = body.into();
        Reply { status, headers: Vec::new(), body, length: Length::True, sent: None, stalls: false }
    }

    /// A file as a good server sends it: ranges, and `If-Range` with a strong ETag.
    pub(crate) fn file(request: &Request, bytes: &[u8], etag: &str) -> Reply {
        let same = request.header("if-range").is_none_or(|e| e == etag);
        let reply = match request.start().filter(|_| same) {
            Some(start) if start >= bytes.len() => {
                Reply::new(416, "").with("Content-Range", &format!("bytes */{}", bytes.len()))
            }
            Some(start) => Reply::part(bytes, start),
            None => Reply::new(200, bytes),
        };
        reply.with("ETag", etag)
    }

    /// A file from `start`, whatever was asked for.
    pub(crate) fn part(bytes: &[u8], start: usize) -> Reply {
        let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
        Reply::new(206, &bytes[start..]).with("Content-Range", &range)
    }

    pub(crate) fn redirect(to: &str) -> Reply {
        Reply::new(302, "").with("Location", to)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn length(self, length: Length) -> Reply {
        Reply { length, ..self }
    }

    /// Ends the connection early.
    pub(crate) fn cut(self, sent: usize) -> Reply {
        Reply { sent: Some(sent), ..self }
    }

    /// Falls silent early.
    pub(crate) fn stalled(self, sent: usize) -> Reply {
        Reply { sent: Some(sent), stalls: true, ..self }
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Whatever\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match self.length {
            Length::True => head += &format!("Content-Length: {}\r\n", self.body.len()),
            Length::Claimed(n) => head += &format!("Content-Length: {n}\r\n"),
            Length::Unsaid => {}
            Length::Chunked => head += "Transfer-Encoding: chunked\r\n",
        }
        stream.write_all((head + "\r\n").as_bytes())?;
        let sent = &self.body[..self.sent.unwrap_or(self.body.len())];
        if matches!(self.length, Length::Chunked) {
            for chunk in sent.chunks(10_000) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            if self.sent.is_none() {
                stream.write_all(b"0\r\n\r\n")?;
            }
        } else {
            stream.write_all(sent)?;
        }
        stream.flush()?;
        if self.stalls {
            // Until the client goes away.
            stream.read_to_end(&mut Vec::new())?;
        }
        Ok(())
    }
}

/// A server on a port of its own. It ends with the process.
pub(crate) struct Server {
    /// `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers every request with what `answer` makes of it and of the number of requests before it.
    pub(crate) fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // A client that has gone is none of the server's worries.
                    let _ = serve(stream, &seen, &*answer);
                });
            }
        });
        Server { url, requests }
    }

    /// Serves one file under every path.
    pub(crate) fn of_file(bytes: Vec<u8>) -> Server {
        Server::start(move |request, _| Reply::file(request, &bytes, "\"1\""))
    }

    /// The URL of a model here.
    pub(crate) fn model(&self) -> String {
        format!("{}/models/m.gguf", self.url)
    }

    /// What was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no thread panicked").clone()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => break,
        }
    }
    let request = Request { path, headers };
    let before = {
        let mut seen = seen.lock().expect("no thread panicked");
        seen.push(request.clone());
        seen.len() - 1
    };
    answer(&request, before).send(&mut stream)
}
