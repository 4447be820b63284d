//go:build !unix

package relay

// cut ends the connection for whoever uses it.
func (k *conn) cut() { k.close() }
