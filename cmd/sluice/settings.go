package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
)

// clientSettings is ~/.config/sluice/config.yaml: where the server is and the
// token to show it.
type clientSettings struct {
	Server string `yaml:"server"`
	Token  string `yaml:"token"`
}

// maxTokenFile bounds what is read as a token.
const maxTokenFile = 4096

// resolve takes flags first, then the environment, then the file, then the
// socket of the default data directory.
func (f *clientFlags) resolve() (clientSettings, error) {
	set, err := readSettings(settingsFile())
	if err != nil {
		return set, err
	}
	if v := os.Getenv("SLUICE_SERVER"); v != "" {
		set.Server = v
	}
	if v := os.Getenv("SLUICE_TOKEN"); v != "" {
		set.Token = v
	}
	if f.server != "" {
		set.Server = f.server
	}
	if f.tokenFile != "" {
		if set.Token, err = readTokenFile(f.tokenFile); err != nil {
			return set, err
		}
	}
	if set.Server == "" {
		set.Server = "unix:" + filepath.Join(defaultDataDir(), "control.sock")
	}
	if strings.HasPrefix(set.Server, "/") {
		set.Server = "unix:" + set.Server
	}
	return set, nil
}

func readSettings(path string) (clientSettings, error) {
	var set clientSettings
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err != nil {
		return set, fmt.Errorf("settings: %w", err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return set, fmt.Errorf("settings: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(raw, &set, yaml.Strict()); err != nil {
		// The error would quote the line, which may hold the token.
		return clientSettings{}, fmt.Errorf("%s is not understood: it has two lines, `server: …` and `token: …`, either may be left out", path)
	}
	if set.Token != "" && info.Mode().Perm()&0o077 != 0 {
		return clientSettings{}, fmt.Errorf("%s holds a token and others can read it; run `chmod 600 %s`", path, path)
	}
	return set, nil
}

func readTokenFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("others can read the token file %s; run `chmod 600 %s`", path, path)
	}
	if info.Size() > maxTokenFile {
		return "", fmt.Errorf("%s has %d bytes, so it is no token file", path, info.Size())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

func settingsFile() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "sluice", "config.yaml")
	}
	return filepath.Join(homeDir(), ".config", "sluice", "config.yaml")
}

// defaultDataDir is where servers and agents keep their state and the control
// socket, unless told otherwise.
func defaultDataDir() string {
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "sluice")
	}
	return filepath.Join(homeDir(), ".local", "share", "sluice")
}

// homeDir falls back to the root directory, as of a daemon without HOME.
func homeDir() string {
	if dir, err := os.UserHomeDir(); err == nil {
		return dir
	}
	return "/"
}
