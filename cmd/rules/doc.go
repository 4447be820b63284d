// Package rules holds the project's rules about its own source, as Go tests.
// It has no code of its own: `go test ./cmd/rules` reads the whole repository
// and names each violation by file and line, with what to do about it.
//
//   - layers_test.go: who may import whom, and which packages may use which
//     module. The tables stand in docs/ARCHITECTURE.md and are read from there,
//     so that page and rule cannot differ.
//   - purity_test.go: decision cores have no goroutine, channel, lock, file,
//     socket, logger, metric, random source or clock.
//   - comment_test.go: a package comment everywhere, a doc comment on every
//     exported name.
//   - size_test.go: files of 600 lines and functions of 70 at most.
//   - words_test.go: no sleeping in tests, no names that say nothing, no
//     reminders left in the text, no paths of one machine.
//   - layout_test.go: the folders at the top, go.mod, the examples.
//
// Where a rule has exceptions they stand in testdata/exceptions.txt, counted
// by rule and file. The file is a ratchet: more than it grants fails, and so
// does less, until `make shrink` has lowered it. Nothing raises it but a
// person who edits it by hand and says why in the commit.
//
// Each checker is a function from parsed files to findings, and each is shown
// by a test of its own to find what it is for.
//
// What it does not do: it judges form only, never whether the code is right.
package rules
