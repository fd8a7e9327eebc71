package execd_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// deafen makes this end of a connection vanish: it takes and says nothing any
// more, and neither does the kernel for it.
func deafen(t testing.TB, c net.Conn) {
	t.Helper()
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", c)
	}
	if err := tcp.SetKeepAlive(false); err != nil {
		t.Fatal(err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	}); errors.Join(e, err) != nil {
		t.Fatal(e, err)
	}
}

// A client that vanishes without a word, with output on its way to it or not,
// has its command killed in bounded time; nothing of the request is left (which
// the end of the daemon looks at).
func TestVanishedClients(t *testing.T) {
	for name, line := range map[string]string{"silent": "", "loud": "while echo on; do sleep 0.05; done; "} {
		t.Run(name, func(t *testing.T) {
			const silence = 6 * time.Second
			d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil))}.WithSilence(silence))
			dir := t.TempDir()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(d.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			body := fmt.Sprintf(`{"command":"trap '' TERM HUP; (setsid sh -c 'echo $$ >%s/deep; exec sleep 1011') & echo begun; %s sleep 1011"}`, dir, line)
			fmt.Fprintf(conn, "POST /command HTTP/1.1\r\nHost: x\r\n%s: %s\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", wire.HeaderToken, token, wire.OutputType, len(body), body)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				conn.Close()
				t.Fatal(err)
			}
			defer func() {
				conn.Close()
				resp.Body.Close() // it reads what still comes
			}()
			if _, err := io.ReadFull(resp.Body, make([]byte, 11)); err != nil || resp.StatusCode != 200 {
				t.Fatal(resp.Status, err)
			}
			pid := pidIn(t, dir+"/deep")
			deafen(t, conn)
			begun := time.Now()
			eventually(t, "what the command started is killed", func() bool { return !alive(pid) })
			if took := time.Since(begun); took > 2*silence {
				t.Errorf("it took %v", took)
			}
		})
	}
}
