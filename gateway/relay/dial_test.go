package relay

import (
	"errors"
	"testing"
)

// A name that a spec may hold can lead anywhere by the time it is dialled, so the address itself is looked at.
func TestCase_SEC_05_dialled_addresses(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1:8000": true, "10.1.2.3:80": true, "[::1]:80": true, "[fd12::1]:80": true, "8.8.8.8:80": true,
		"169.254.169.254:80": false, "[::ffff:169.254.169.254]:80": false, "[fe80::1%eth0]:80": false, "[fd00:ec2::254]:80": false,
		"0.0.0.0:80": false, "[::]:80": false, "[::ffff:0.0.0.0]:80": false, "224.0.0.1:80": false, "[ff02::1]:80": false, "name:80": false,
	} {
		if got := refuseForbidden("tcp", address, nil) == nil; got != ok {
			t.Errorf("%s: dialled %v, want %v", address, got, ok)
		}
	}
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, addr := range []string{"169.254.169.254:80", "http://169.254.169.254/latest", "[::ffff:169.254.169.254]:80"} {
		var x Exchange
		x.Begin()
		if err := c.Do(&x, &Request{Addr: addr, Method: "GET", Path: "/"}); !errors.Is(err, ErrConnect) {
			t.Errorf("%s: %v", addr, err)
		}
		c.Finish(&x)
	}
}
