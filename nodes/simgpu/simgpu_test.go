package simgpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const gib = int64(1) << 30

func newDir(t testing.TB, uuids ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpus")
	var specs []Spec
	for _, u := range uuids {
		specs = append(specs, Spec{UUID: u, Name: "sim", MemoryBytes: 80 * gib})
	}
	if err := Create(dir, specs); err != nil {
		t.Fatal(err)
	}
	return dir
}

func attachTo(t testing.TB, dir, uuid, holder string) *Context {
	t.Helper()
	dev, err := Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Attach(holder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func readOne(t testing.TB, dir string) Reading {
	t.Helper()
	rs, err := Read(dir)
	if err != nil || len(rs) == 0 {
		t.Fatalf("read: %v, %d gpus", err, len(rs))
	}
	return rs[0]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	dir := newDir(t, "GPU-9", "GPU-10")
	c := attachTo(t, dir, "GPU-9", "a")
	must(t, c.Alloc(gib))
	must(t, Create(dir, []Spec{{UUID: "GPU-9", MemoryBytes: 1}, {UUID: "GPU-2", MemoryBytes: 5, Island: 1}}))
	specs, err := List(dir)
	must(t, err)
	if len(specs) != 3 || specs[0].UUID != "GPU-9" || specs[1].UUID != "GPU-10" || specs[2].UUID != "GPU-2" {
		t.Fatalf("order of creation is lost: %v", specs)
	}
	if specs[0].MemoryBytes != 80*gib || specs[2].Island != 1 || readOne(t, dir).UsedBytes != gib {
		t.Fatalf("an existing gpu was changed: %v", specs)
	}
}

func TestCreateRefusesBadSpecs(t *testing.T) {
	for _, s := range []Spec{{}, {UUID: "a/b", MemoryBytes: 1}, {UUID: ".x", MemoryBytes: 1}, {UUID: "a"}, {UUID: "a b", MemoryBytes: 1}} {
		wantErr(t, Create(filepath.Join(t.TempDir(), "d"), []Spec{s}), ErrBadSpec)
	}
	_, err := Open(newDir(t, "a"), "b")
	wantErr(t, err, ErrUnknownGPU)
}

func TestMemoryIsEnforcedOverAllHolders(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a, b := attachTo(t, dir, "GPU-0", "a"), attachTo(t, dir, "GPU-0", "b")
	must(t, a.SetAllocated(60*gib))
	wantErr(t, b.Alloc(20*gib+1), ErrOutOfMemory)
	wantErr(t, b.SetAllocated(1<<62), ErrOutOfMemory)
	wantErr(t, b.Alloc(1<<62), ErrOutOfMemory)
	if r := readOne(t, dir); r.UsedBytes != 60*gib {
		t.Fatalf("a refused allocation left %d bytes", r.UsedBytes-60*gib)
	}
	must(t, b.Alloc(20*gib))
	wantErr(t, a.Alloc(1), ErrOutOfMemory)
	must(t, a.SetAllocated(10*gib))
	must(t, b.Alloc(50*gib))
	must(t, b.Free(1<<40))
	must(t, a.Alloc(0))
	wantErr(t, a.Alloc(-1), ErrBadSpec)
	wantErr(t, a.Free(-1), ErrBadSpec)
	if r := readOne(t, dir); r.UsedBytes != 10*gib || len(r.Procs) != 2 {
		t.Fatalf("reading %+v", r)
	}
	must(t, a.Close())
	must(t, a.Close())
	wantErr(t, a.Alloc(1), ErrClosed)
	if r := readOne(t, dir); r.UsedBytes != 0 || len(r.Procs) != 1 {
		t.Fatalf("reading after close %+v", r)
	}
}

func TestOneActiveHolder(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a1, a2, b := attachTo(t, dir, "GPU-0", "a"), attachTo(t, dir, "GPU-0", "a"), attachTo(t, dir, "GPU-0", "b")
	must(t, a1.Activate())
	must(t, a1.Activate())
	must(t, a2.Activate())
	wantErr(t, b.Activate(), ErrBusy)
	must(t, a1.Deactivate())
	wantErr(t, b.Activate(), ErrBusy)
	must(t, a2.Close())
	must(t, b.Activate())
	wantErr(t, a1.Activate(), ErrBusy)
	vs, err := Violations(dir)
	must(t, err)
	if len(vs) != 3 || vs[0].Holder != "b" || vs[0].ActiveHolder != "a" || vs[2].Holder != "a" || vs[0].PID != os.Getpid() || vs[0].AtUnixMs == 0 {
		t.Fatalf("violations %+v", vs)
	}
}

func TestFaultsAreInjected(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a := attachTo(t, dir, "GPU-0", "a")
	must(t, a.Alloc(gib))
	must(t, a.Activate())
	must(t, SetLost(dir, "GPU-0", true))
	must(t, SetXID(dir, "GPU-0", 79))
	if r := readOne(t, dir); !r.Lost || r.XID != 79 {
		t.Fatalf("reading %+v", r)
	}
	wantErr(t, a.Check(), ErrLost)
	wantErr(t, a.Alloc(1), ErrLost)
	must(t, a.Deactivate())
	wantErr(t, a.Activate(), ErrLost)
	dev, _ := Open(dir, "GPU-0")
	_, err := dev.Attach("b")
	wantErr(t, err, ErrLost)
	must(t, a.Free(gib))
	must(t, SetLost(dir, "GPU-0", false))
	must(t, a.Check())
	must(t, a.Activate())
	wantErr(t, SetLost(dir, "nope", true), ErrUnknownGPU)
}

func TestContextsAreLimited(t *testing.T) {
	dir := newDir(t, "GPU-0")
	for range MaxContexts {
		attachTo(t, dir, "GPU-0", "a")
	}
	dev, _ := Open(dir, "GPU-0")
	_, err := dev.Attach("a")
	wantErr(t, err, ErrFull)
}

func TestFromEnv(t *testing.T) {
	t.Setenv(EnvDir, "")
	if cs, err := FromEnv(); cs != nil || err != nil {
		t.Fatalf("without a directory: %v, %v", cs, err)
	}
	dir := newDir(t, "GPU-0", "GPU-1")
	t.Setenv(EnvDir, dir)
	t.Setenv(EnvDevices, "GPU-1, GPU-0")
	t.Setenv(EnvHolder, "")
	_, err := FromEnv()
	wantErr(t, err, ErrBadEnv)
	t.Setenv(EnvHolder, "h")
	cs, err := FromEnv()
	must(t, err)
	if len(cs) != 2 || cs[0].Spec().UUID != "GPU-1" || cs[1].Holder() != "h" {
		t.Fatalf("contexts %+v", cs)
	}
	for _, c := range cs {
		must(t, c.Close())
	}
	t.Setenv(EnvDevices, "GPU-0,GPU-7")
	_, err = FromEnv()
	wantErr(t, err, ErrUnknownGPU)
	if r := readOne(t, dir); len(r.Procs) != 0 {
		t.Fatalf("a refused start left %+v", r.Procs)
	}
}

func TestConcurrentUseBalances(t *testing.T) {
	dir := newDir(t, "GPU-0")
	var wg sync.WaitGroup
	for _, h := range []string{"a", "b", "c", "d"} {
		c := attachTo(t, dir, "GPU-0", h)
		wg.Go(func() {
			for range 50 {
				if err := c.Alloc(30 * gib); err == nil {
					if err := c.Free(30 * gib); err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, ErrOutOfMemory) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if r := readOne(t, dir); r.UsedBytes != 0 {
		t.Fatalf("%d bytes left", r.UsedBytes)
	}
}

// A copy torn by a killed writer is passed over; with both gone the error says
// what to do.
func TestTornCopyIsPassedOver(t *testing.T) {
	dir := newDir(t, "GPU-0")
	c := attachTo(t, dir, "GPU-0", "a")
	must(t, c.Alloc(gib))
	must(t, c.Alloc(gib))
	f, err := os.OpenFile(statePath(dir, "GPU-0"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	st, err := (&stateFile{f: f, buf: make([]byte, fileBytes)}).read()
	must(t, err)
	_, err = f.WriteAt([]byte("torn"), st.Seq%2*slotBytes+40)
	must(t, err)
	if r := readOne(t, dir); r.UsedBytes != gib {
		t.Fatalf("not the state before the torn one: %+v", r)
	}
	must(t, c.Alloc(gib))
	if r := readOne(t, dir); r.UsedBytes != 2*gib {
		t.Fatalf("reading %+v", r)
	}
	must(t, os.Truncate(statePath(dir, "GPU-0"), 0))
	if _, err := Read(dir); err == nil {
		t.Fatal("an empty state was read")
	}
}

// The longest names fill a state to its limit of contexts and still fit.
func TestFullStateFits(t *testing.T) {
	uuid := strings.Repeat("u", 128)
	dir := newDir(t, uuid)
	for range MaxContexts {
		c := attachTo(t, dir, uuid, strings.Repeat("h", MaxHolderBytes))
		must(t, c.Alloc(gib+123456789))
		must(t, c.Activate())
	}
	if r := readOne(t, dir); len(r.Procs) != MaxContexts {
		t.Fatalf("%d contexts", len(r.Procs))
	}
}

func BenchmarkSetAllocated(b *testing.B) {
	dir := newDir(b, "GPU-0")
	c := attachTo(b, dir, "GPU-0", "a")
	other := attachTo(b, dir, "GPU-0", "b")
	must(b, other.Alloc(gib))
	n := int64(0)
	for b.Loop() {
		n++
		must(b, c.SetAllocated(n))
	}
}

func BenchmarkRead8(b *testing.B) {
	dir := newDir(b, "0", "1", "2", "3", "4", "5", "6", "7")
	for _, u := range []string{"0", "1", "2", "3", "4", "5", "6", "7"} {
		attachTo(b, dir, u, "a")
	}
	for b.Loop() {
		_, err := Read(dir)
		must(b, err)
	}
}
