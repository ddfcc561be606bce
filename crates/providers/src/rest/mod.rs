//! REST tools: one HTTP request each. `request` describes it, whether a configured entry (`entry`, templates over the
//! call's arguments) or an imported operation ([`crate::openapi`]) was its source; `provider` makes the calls.

mod body;
mod credential;
mod entry;
mod error;
mod payload;
mod place;
mod provider;
mod query;
mod reply;
mod request;
mod spec;
mod template;
mod xml;

pub(crate) use body::{BodyTemplate, JsonTemplate};
pub(crate) use credential::{Credential, TokenSource};
pub(crate) use entry::FRAMING;
pub use error::RestError;
pub(crate) use payload::{FieldWriting, Kinds, PartContent, PartList, PartWriting, Payload, PayloadKind};
pub(crate) use place::{CookieStyle, Explode, PathStyle, Writing};
pub(crate) use provider::HttpTool;
pub(crate) use provider::{MAX_BYTES, RETRIES, compile};
pub use provider::{RestOptions, RestProvider};
pub(crate) use query::Reserved;
pub use query::Style;
pub(crate) use reply::Reading;
pub use reply::Selection;
pub(crate) use request::{CookiePart, HeaderPart, Pair, PathPart, RequestTemplate};
pub use spec::{QueryValue, ResponseFormat, RestMethod, RestToolConfig};
pub(crate) use template::{Need, Parameter, Segment, Template};
pub(crate) use xml::{XmlBody, XmlList, XmlNode, XmlPlace, XmlSchema, is_name as is_xml_name};
