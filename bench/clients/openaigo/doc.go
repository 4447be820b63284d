// Package openaigo runs OpenAI's SDK for Go, unmodified, against a gateway that
// the tests of bench/clients have started. It has no code of its own beside its
// tests, and is a module of its own.
package openaigo
