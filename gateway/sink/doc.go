// Package sink takes the records of requests that have ended and puts them where the operator wants them: lines of an
// access log in a file, spans to a collector by OTLP over HTTP.
//
// # Reading order
//
//   - config.go: what can be set
//   - sink.go: taking and putting records, the bounded queue
//   - file.go: the goroutine that owns the file
//   - otlp.go: the goroutine that sends spans
//
// # What it decides
//
// Which requests are told: with a sample below 1, that share of the requests that went well, and all others. Spans follow
// the trace's own flag. And what happens when it cannot keep up: a record that finds the queue full, a line that cannot
// be written and a batch of spans that cannot be sent are dropped and counted ([Sink.Stats]). A request never waits.
//
// # What its caller owes it
//
//	s, err := sink.Open(cfg)
//	…
//	r := s.Take()  // when a request arrives; fill it
//	s.Put(r)       // when it has ended; not touched again
//	…
//	s.Reopen()     // after the file was renamed (rotation)
//	s.Close(ctx)   // after the last Put; what is queued is written and sent
//
// All methods are safe for concurrent use. A waiting queue costs nothing; a filling one wakes its goroutine a few times a
// second, not once a request.
//
// Spans go out as OTLP's JSON, written by package record. OpenTelemetry's own SDK with its HTTP exporter was measured
// instead: it brings gRPC and protobuf along, 12 MB and about 180 packages, to send what is one JSON document here.
//
// What it does not do: decide what a record may hold (package record), rotate files, gzip, gRPC.
package sink
