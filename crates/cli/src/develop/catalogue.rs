//! `catalogue`: signs catalogues of tools, and verifies signed ones.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolwright::core::json::fault;
use toolwright::net::{HttpClient, HttpOptions};
use toolwright::providers::catalogue::{
    CatalogueConfig, Grants, PublicKey, SigningKey, Verified, VerifyOptions, check_tools, fetch, sign, verify,
};

use crate::app::{GlobalOptions, not_nested, now_ms, open};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{BAD, BOLD, DIM, GOOD, print_json, print_text, sanitize, say, stdout, styled};
use crate::values::duration;

/// The most bytes of a file that are read.
const MAX_BYTES: usize = 64 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum CatalogueCommand {
    /// Make a private key in a new file, and print its public key.
    Keygen {
        /// The file, which must not exist yet.
        file: PathBuf,
    },
    /// Sign a catalogue, and print it with the signature added.
    Sign {
        /// The catalogue, JSON; `-` is standard input.
        file: PathBuf,
        /// The private key: PKCS#8, PEM or DER.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Sets its date to now, and lets it expire after this time.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
        /// Writes it to this file instead of standard output.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Check a catalogue as its readers would, and list its tools. Exit code 1 if it is refused.
    Verify(Verify),
    /// Forget which version of a configured catalogue was accepted last. The next signed version is then accepted, even
    /// an older one. Exit code 1 if no version was accepted.
    Forget {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// A file, `-` for standard input, or an https address.
    source: String,
    /// A public key whose signature is accepted (repeatable).
    #[arg(long, value_name = "KEY", required = true)]
    key: Vec<String>,
    /// The namespace for its tools. Default: the one that it names.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// A variable that it may use (repeatable). Its value is not read.
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
}

pub(crate) async fn command(global: &GlobalOptions, command: &CatalogueCommand) -> CommandResult {
    match command {
        CatalogueCommand::Keygen { file } => keygen(global, file),
        CatalogueCommand::Sign { file, key, expires, out } => signed(file, key, *expires, out.as_deref()),
        CatalogueCommand::Verify(args) => verified(global, args).await,
        CatalogueCommand::Forget { name } => forget(global, name).await,
    }
}

async fn forget(global: &GlobalOptions, name: &str) -> CommandResult {
    not_nested("have an older catalogue accepted")?;
    let app = open(global).await?;
    let forgotten = app.forget_catalogue(name).await.map_err(Failure::failed);
    app.shut_down().await;
    let forgotten = forgotten?;
    if global.json {
        print_json(&json!({"catalogue": name, "forgotten": forgotten}))?;
    } else if forgotten {
        say(sanitize(&format!("Toolwright accepts the next version of {name} without comparing it")));
    } else {
        say(sanitize(&format!("nothing is known of a catalogue {name}")));
    }
    Ok(if forgotten { Exit::Ok } else { Exit::Failed })
}

fn keygen(global: &GlobalOptions, file: &Path) -> CommandResult {
    let pem = SigningKey::generate().map_err(Failure::failed)?;
    let key = SigningKey::read(pem.as_bytes()).map_err(Failure::failed)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let cannot = |error: std::io::Error| Failure::usage(format!("{} cannot be made: {error}", file.display()));
    options.open(file).and_then(|mut opened| opened.write_all(pem.as_bytes())).map_err(cannot)?;
    let public = key.public().to_string();
    if global.json {
        print_json(&json!({"file": file, "key": public}))?;
    } else {
        print_text(&public)?;
        say(format_args!("the private key is in {}: keep it to yourself", file.display()));
    }
    Ok(Exit::Ok)
}

fn signed(file: &Path, key: &Path, expires: Option<Duration>, out: Option<&Path>) -> CommandResult {
    let unusable = |what: &Path, error: String| Failure::usage(format!("{}: {error}", what.display()));
    let key_bytes = read(key).map_err(|error| unusable(key, error))?;
    let key = SigningKey::read(&key_bytes).map_err(|error| unusable(key, error.to_string()))?;
    let bytes = read(file).map_err(|error| unusable(file, error))?;
    let mut document: Value =
        serde_json::from_slice(&bytes).map_err(|error| unusable(file, format!("it is not JSON: {}", fault(&error))))?;
    if let (Some(expires), Some(fields)) = (expires, document.as_object_mut()) {
        fields.insert("issued".to_owned(), json!(now()));
        fields.insert("expires".to_owned(), json!(now().saturating_add(expires.as_secs())));
        // Signatures of other content become invalid.
        fields.shift_remove("signatures");
    }
    let signed = sign(&document, &key).map_err(|refusal| unusable(file, refusal.to_string()))?;
    let text = format!("{signed:#}\n");
    match out {
        Some(out) => std::fs::write(out, text).map_err(|error| unusable(out, error.to_string()))?,
        None => stdout().write_all(text.as_bytes())?,
    }
    Ok(Exit::Ok)
}

async fn verified(global: &GlobalOptions, args: &Verify) -> CommandResult {
    let mut keys: Vec<PublicKey> = Vec::with_capacity(args.key.len());
    for key in &args.key {
        keys.push(key.parse().map_err(Failure::usage)?);
    }
    let bytes = match url::Url::parse(&args.source) {
        Ok(url) if url.scheme().starts_with("http") => {
            let config = CatalogueConfig { max_bytes: MAX_BYTES, ..CatalogueConfig::new("", url, keys.clone()) };
            let client = HttpClient::new(config.address.clone(), HttpOptions::default());
            fetch(&client, &config).await.map_err(Failure::failed)?
        }
        _ => read(Path::new(&args.source)).map_err(|error| Failure::usage(format!("{}: {error}", args.source)))?,
    };
    let namespace = match &args.namespace {
        Some(namespace) => namespace.clone(),
        None => {
            let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            value.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned()
        }
    };
    let options = VerifyOptions { keys: &keys, namespace: &namespace, now: now(), max_bytes: MAX_BYTES, seen: None };
    let verified = verify(&bytes, &options).map_err(|refusal| Failure::failed(format!("it is refused: {refusal}")))?;
    let secrets = args.secret.iter().map(|name| (name.clone(), String::new())).collect();
    report(global, &verified, &Grants { secrets, ..Grants::default() })
}

fn report(global: &GlobalOptions, verified: &Verified, grants: &Grants) -> CommandResult {
    let (tools, refused) = check_tools(verified, grants);
    let exit = if refused.is_empty() { Exit::Ok } else { Exit::Failed };
    let document = &verified.document;
    if global.json {
        let refused: Vec<Value> = refused.iter().map(|tool| json!({"id": tool.id, "reason": tool.why})).collect();
        print_json(&json!({
            "namespace": document.namespace,
            "version": document.version,
            "expires": document.expires,
            "key": verified.key.to_string(),
            "hash": verified.seen.hash,
            "tools": tools,
            "refused": refused,
        }))?;
        return Ok(exit);
    }
    let left = Duration::from_secs(document.expires.saturating_sub(now()));
    let about = format!("version {}, expires in {}", document.version, toolwright::core::duration::format(left));
    print_text(&format!("{}  {}", styled(BOLD, sanitize(&document.namespace)), styled(DIM, about)))?;
    print_text(&format!("signed by {}", verified.key))?;
    for id in &tools {
        print_text(&format!("{} {id}", styled(GOOD, "✓")))?;
    }
    for tool in &refused {
        print_text(&format!("{} {}: {}", styled(BAD, "✗"), sanitize(&tool.id), sanitize(&tool.why)))?;
    }
    Ok(exit)
}

/// Reads the bytes of a file or of standard input, up to a limit.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    let opened: Box<dyn std::io::Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).map_err(|error| error.to_string())?),
    };
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    std::io::Read::read_to_end(&mut std::io::Read::take(opened, limit + 1), &mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() > MAX_BYTES { Err(format!("it is larger than {MAX_BYTES} bytes")) } else { Ok(bytes) }
}

fn now() -> u64 {
    now_ms() / 1000
}
