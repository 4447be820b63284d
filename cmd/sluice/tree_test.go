package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// withoutOutput run a process or stream text that is not theirs: no -o.
var withoutOutput = []string{"sluice up", "sluice serve", "sluice agent", "sluice demo", "sluice hold", "sluice engine", "sluice trainer", "sluice job logs"}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

// Every command says what it does, shows an example that parses, and prints in
// three formats.
func TestTree(t *testing.T) {
	root := newRootCmd()
	walk(root, func(c *cobra.Command) {
		path := c.CommandPath()
		if c.Short == "" || strings.HasSuffix(c.Short, ".") || len(c.Short) > 80 {
			t.Errorf("`%s`: Short %q", path, c.Short)
		}
		if !strings.Contains(c.Example, "sluice") {
			t.Errorf("`%s` has no example", path)
		}
		for line := range strings.Lines(c.Example) {
			checkExample(t, path, line)
		}
		if c.HasSubCommands() || slices.Contains(withoutOutput, path) {
			return
		}
		if f := c.Flags().Lookup("output"); f == nil || f.Shorthand != "o" {
			t.Errorf("`%s` prints and has no -o", path)
		}
	})
}

// checkExample finds the command of an example's line and its flags.
func checkExample(t *testing.T, path, line string) {
	t.Helper()
	line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
	line, _, _ = strings.Cut(line, " |")
	words := strings.Fields(line)
	if i := slices.Index(words, "sluice"); i > 0 {
		return // behind a pipe
	}
	if len(words) == 0 || words[0] != "sluice" {
		return
	}
	words = words[1:]
	if i := slices.Index(words, "--"); i >= 0 {
		words = words[:i]
	}
	c, rest, err := newRootCmd().Find(words)
	if err != nil || len(words) > 0 && c.Parent() == nil {
		t.Errorf("example of `%s`: %q is no command: %v", path, line, err)
		return
	}
	if err := c.ParseFlags(rest); err != nil {
		t.Errorf("example of `%s`: %q: %v", path, line, err)
	}
}

func TestHelpNamesEveryVerb(t *testing.T) {
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, nil, &out, &out); code != exitOK {
		t.Fatal(code)
	}
	for _, c := range newRootCmd().Commands() {
		if !c.Hidden && !strings.Contains(out.String(), "\n  "+c.Name()+" ") {
			t.Errorf("help does not name %s:\n%s", c.Name(), out.String())
		}
	}
}

func TestExitCodes(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("SLUICE_SERVER", "")
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"version":                             {exitOK, ""},
		"model":                               {exitOK, ""},
		"bogus":                               {exitUsage, "unknown command"},
		"model bogus":                         {exitUsage, `"bogus" is no command of`},
		"model list --bad":                    {exitUsage, "unknown flag"},
		"model list extra":                    {exitUsage, "takes no argument"},
		"model describe":                      {exitUsage, "a model's name"},
		"model list -o xml":                   {exitUsage, "table, json or yaml"},
		"model apply":                         {exitUsage, "-f FILE"},
		"model list":                          {exitRefused, "sluice up"},
		"model apply -f /nonexistent.yaml":    {exitRefused, "spec file"},
		"top --interval 1ms":                  {exitUsage, "--interval"},
		"job submit":                          {exitUsage, "--"},
		"job submit x --world 4-2 -- train":   {exitUsage, "--world"},
		"job submit x --grace 30 -- train":    {exitUsage, "--grace"},
		"job submit X -- train":               {exitRefused, "name"},
		"job logs x --tail lots":              {exitUsage, "--tail"},
		"status --server http://127.0.0.1:1":  {exitRefused, "https://host:port"},
		"status --server https://127.0.0.1:1": {exitRefused, "token create"},
		"engine --speed 0":                    {exitUsage, "Speed"},
		"engine --active-memory 20":           {exitUsage, "--active-memory"},
		"trainer --micro-batches 0":           {exitUsage, "MicroBatches"},
		"hold":                                {exitUsage, "--dir"},
		"serve --grace -1s":                   {exitRefused, "--grace -1s"},
		"serve --access-log-sample 0.5":       {exitRefused, "give --access-log too"},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &errOut)
		if code != want.code || !strings.Contains(errOut.String(), want.says) {
			t.Errorf("sluice %s: exit %d, %q; want %d and %q", args, code, errOut.String(), want.code, want.says)
		}
		if code == exitRefused && strings.Contains(errOut.String(), "--help") {
			t.Errorf("sluice %s: a refusal is not an error of use: %q", args, errOut.String())
		}
	}
}
