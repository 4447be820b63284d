// Package clients holds the tests of the gateway by the SDKs that applications
// use, official and unmodified: openai, @anthropic-ai/sdk and ai (with its
// OpenAI providers) from npm, and openai-go. It has no code of its own beside
// them.
//
// A test starts the built program as a server and two simulated engines that do
// on demand what engines do when they fail, and runs suite/*.test.js with
// node's own test runner: plain and streamed answers, tools, errors as the
// exceptions of the SDK, retries, timeouts, cancels. What README.md shows of
// SDKs is run as it stands there.
//
// The SDKs are installed once, at the versions and hashes of package-lock.json,
// into the user's cache directory; without node, npm or a registry the tests
// skip and say so. The suite in Go is a module of its own, openaigo, so that
// the product's go.mod has nothing to do with it; compiling that SDK takes
// minutes of a small machine, so it runs on demand only.
//
//	go test ./bench/clients
//	SLUICE_CLIENTS_GO=1 go test ./bench/clients -run Go
package clients
