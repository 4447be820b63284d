package clients

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	oldestNode   = 20
	installLimit = 3 * time.Minute
	suiteLimit   = 4 * time.Minute
)

// TestSDKsOfNode runs suite/*.test.js and what README.md shows.
func TestSDKsOfNode(t *testing.T) {
	modules := installed(t)
	s := newSite(t)
	dir := t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS("suite")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type":"module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.writeReadme(dir)
	suites, err := filepath.Glob(filepath.Join(dir, "*.test.js"))
	if err != nil || len(suites) == 0 {
		t.Fatalf("no suites: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	node := exec.CommandContext(ctx, "node", append([]string{"--test", "--test-reporter=spec"}, suites...)...)
	node.Env, node.Dir = s.env(), dir
	out, err := node.CombinedOutput()
	if err != nil {
		t.Fatalf("the suites: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// installed returns a node_modules folder with what package-lock.json names, or
// skips.
func installed(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("real SDKs against real processes take half a minute: not with -short")
	}
	if raceOn {
		t.Skip("the program is built without the race detector: this would be the same again")
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: the SDKs of npm cannot be tried", program)
		}
	}
	version, err := exec.Command("node", "--version").Output()
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, _ := strconv.Atoi(major); err != nil || n < oldestNode {
		t.Skipf("node is %s: the SDKs need %d or newer", strings.TrimSpace(string(version)), oldestNode)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("nowhere to install the SDKs: %v", err)
	}
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	kept := filepath.Join(cache, "sluice-clients", hex.EncodeToString(sum[:8]))
	modules := filepath.Join(kept, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	install(t, kept)
	return modules
}

// unreachable is what npm says when it finds no registry.
var unreachable = regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E40[37]|E5\d\d`)

// install puts the modules into a folder beside kept, and that in its place
// when it is whole: tests may run at once, and end at any time.
func install(t *testing.T, kept string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		t.Skipf("nowhere to install the SDKs: %v", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(kept), "new-")
	if err != nil {
		t.Skipf("nowhere to install the SDKs: %v", err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"package.json", "package-lock.json"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), installLimit)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", "--loglevel=error")
	npm.Dir = dir
	npm.WaitDelay = time.Second
	out, err := npm.CombinedOutput()
	switch {
	case err == nil:
	case unreachable.Match(out) || ctx.Err() != nil:
		t.Skipf("npm cannot get the SDKs, is there a registry? %v\n%s", err, out)
	default:
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Rename(dir, kept); err != nil {
		if _, other := os.Stat(kept); other != nil { // nobody else was faster
			t.Fatal(err)
		}
	}
}

// jsBlock finds the JavaScript of a page.
var jsBlock = regexp.MustCompile("(?s)```js\n(.*?)```")

// writeReadme makes a suite of the JavaScript in README.md: each block runs as it stands, with the address and the
// model of this site.
func (s *site) writeReadme(dir string) {
	s.t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		s.t.Fatal(err)
	}
	blocks := jsBlock.FindAllSubmatch(page, -1)
	if len(blocks) == 0 {
		s.t.Fatal(errors.New("README.md shows no SDK"))
	}
	suite := "import test from 'node:test'\n"
	for i, b := range blocks {
		name := "readme" + strconv.Itoa(i) + ".js"
		code := strings.ReplaceAll(string(b[1]), "http://127.0.0.1:8080", s.gateway)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600); err != nil {
			s.t.Fatal(err)
		}
		suite += "test('README.md, example " + strconv.Itoa(i+1) + "', () => import('./" + name + "'))\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "readme.test.js"), []byte(suite), 0o600); err != nil {
		s.t.Fatal(err)
	}
}
