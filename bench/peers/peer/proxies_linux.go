package peer

import (
	"fmt"
	"path/filepath"
	"strings"

	"sluice/bench/peers/proc"
)

// each renders one line an engine.
func each(s *Setup, format string) string {
	var b strings.Builder
	for i, e := range s.Engines {
		fmt.Fprintf(&b, format+"\n", i, e)
	}
	return b.String()
}

// nginxFrame is what both nginx set-ups have alike: one worker, files of its own, limits beyond what is measured. With less than a
// sixteenth of worker_connections free it would close connections that have not asked yet.
const nginxFrame = `daemon off;
%[1]s
worker_processes 1;
worker_rlimit_nofile %[2]d;
pid %[3]s/pid;
error_log stderr crit;
events { worker_connections %[5]d; }
http {
  client_body_temp_path %[3]s/body; proxy_temp_path %[3]s/proxy; fastcgi_temp_path %[3]s/f; uwsgi_temp_path %[3]s/u; scgi_temp_path %[3]s/s;
  client_max_body_size 64m;
  keepalive_requests 100000000;
%[4]s
}
`

func nginx(s *Setup, body string) (proc.Command, error) {
	user := ""
	if isRoot() {
		user = "user root;" // else its worker could not write below our folder
	}
	conf, err := write(s, "nginx.conf", fmt.Sprintf(nginxFrame, user, Files()-100, s.Dir, body, Files()+Files()/4))
	return proc.Command{Name: "nginx", Args: []string{"-p", s.Dir, "-e", "stderr", "-c", conf}}, err
}

// nginxTuned is nginx as people set it up before engines that stream.
func nginxTuned(s *Setup, port int) (proc.Command, error) {
	return nginx(s, fmt.Sprintf(`  access_log off;
  keepalive_timeout 600;
  client_body_buffer_size 256k;
  upstream engines {
%s    keepalive 1024;
    keepalive_requests 100000000;
  }
  server {
    listen 127.0.0.1:%d backlog=4096;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600;
    }
  }`, each(s, "    # engine %d\n    server %s;"), port))
}

// nginxDefault is what a plain proxy_pass gives.
func nginxDefault(s *Setup, port int) (proc.Command, error) {
	return nginx(s, fmt.Sprintf(`  access_log %s;
  upstream engines {
%s  }
  server {
    listen 127.0.0.1:%d backlog=4096;
    location / { proxy_pass http://engines; }
  }`, filepath.Join(s.Dir, "access.log"), each(s, "    # engine %d\n    server %s;"), port))
}

func haproxy(s *Setup, port int, options string) (proc.Command, error) {
	conf, err := write(s, "haproxy.cfg", fmt.Sprintf(`global
  maxconn %d
  nbthread 1
defaults
  mode http
%s  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend clients
  bind 127.0.0.1:%d backlog 4096
  default_backend engines
backend engines
%s`, (Files()-300)/2, options, port, each(s, "  server e%d %s")))
	return proc.Command{Name: "haproxy", Args: []string{"-db", "-f", conf}}, err
}

func haproxyDefault(s *Setup, port int) (proc.Command, error) { return haproxy(s, port, "") }

// haproxyNoDelay hands tokens on at once and notices departed clients.
func haproxyNoDelay(s *Setup, port int) (proc.Command, error) {
	return haproxy(s, port, "  option http-no-delay\n  option abortonclose\n")
}

// caddy without flush_interval: streams of events are handed on at once anyway, and with -1 Caddy no longer tells the engine
// when a client leaves.
func caddy(s *Setup, port int) (proc.Command, error) {
	conf, err := write(s, "Caddyfile", fmt.Sprintf(`{
  admin off
  auto_https off
}
http://:%d {
  bind 127.0.0.1
  reverse_proxy %s
}
`, port, strings.Join(s.Engines, " ")))
	return proc.Command{Name: "caddy", Args: []string{"run", "--adapter", "caddyfile", "--config", conf},
		Env: []string{"HOME=" + s.Dir, "XDG_DATA_HOME=" + s.Dir, "XDG_CONFIG_HOME=" + s.Dir}}, err
}
