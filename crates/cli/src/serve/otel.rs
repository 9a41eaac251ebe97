//! Spans for a collector that speaks OTLP over HTTP. The exporter reads its settings from the variables that
//! OpenTelemetry has for them; without `OTEL_EXPORTER_OTLP_ENDPOINT` nothing is sent anywhere.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::registry::LookupSpan;

use crate::settings::Environment;

/// What sends the spans, from a thread of its own. Dropping it sends the last of them.
pub(super) struct Exporter(SdkTracerProvider);

impl Drop for Exporter {
    fn drop(&mut self) {
        // The collector may be gone by now; then nobody wants them.
        let _ = self.0.shutdown();
    }
}

/// A layer for the log that sends its spans, if there is somewhere to send them.
pub(super) fn export<S>(environment: Environment<'_>) -> Option<(OpenTelemetryLayer<S, Tracer>, Exporter)>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    environment("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    let exporter = SpanExporter::builder().with_http().build().ok()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("belljar").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("belljar"));
    Some((layer, Exporter(provider)))
}
