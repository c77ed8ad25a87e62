// Calls greeter.v1.Greeter/Hello as the stock client of a Go framework does that knows several hosts:
//
//	stock go-zero ETCD,ETCD SERVICE
//	stock kratos SERVER,SERVER
//
// It calls until its standard input ends. It prints `served SERVER` once a server has answered some
// calls, `failed WHY` for each call that fails, and at the end `calls COUNT`.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	kratos "github.com/go-kratos/kratos/v2/transport/grpc"
	"github.com/zeromicro/go-zero/core/discov"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/zrpc"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	method = "/greeter.v1.Greeter/Hello"
	// How many calls are in flight at a time, and how long each caller rests between two of them.
	callers = 4
	rest    = 10 * time.Millisecond
	// A call's deadline: a slow machine must not look like a lost call.
	limit = 10 * time.Second
	// So many answers show that a server serves this client.
	enough = 10
)

func main() {
	connection, err := connect(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	ledger := &ledger{served: map[string]int{}}
	var running sync.WaitGroup
	for range callers {
		running.Add(1)
		go func() {
			defer running.Done()
			for {
				select {
				case <-ended:
					return
				case <-time.After(rest):
					ledger.note(call(connection))
				}
			}
		}()
	}
	running.Wait()
	fmt.Println("calls", ledger.calls)
}

func connect(words []string) (grpc.ClientConnInterface, error) {
	switch {
	case len(words) == 3 && words[0] == "go-zero":
		logx.Disable()
		client, err := zrpc.NewClient(zrpc.RpcClientConf{
			Etcd:    discov.EtcdConf{Hosts: strings.Split(words[1], ","), Key: words[2]},
			Timeout: limit.Milliseconds(),
		})
		if err != nil {
			return nil, err
		}
		return client.Conn(), nil
	case len(words) == 2 && words[0] == "kratos":
		target := kratos.WithEndpoint("direct:///" + words[1])
		return kratos.DialInsecure(context.Background(), target, kratos.WithTimeout(limit))
	}
	return nil, fmt.Errorf("unknown: %q", words)
}

// One call: the name of the server that answered. The messages have one string each, which is field 1,
// as a StringValue has: no generated code is needed.
func call(connection grpc.ClientConnInterface) (string, error) {
	limited, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer := new(wrapperspb.StringValue)
	err := connection.Invoke(limited, method, wrapperspb.String("stock"), answer)
	return answer.GetValue(), err
}

type ledger struct {
	sync.Mutex
	calls  int
	served map[string]int
}

func (ledger *ledger) note(server string, err error) {
	ledger.Lock()
	defer ledger.Unlock()
	ledger.calls++
	if err != nil {
		fmt.Printf("failed %q\n", err)
		return
	}
	ledger.served[server]++
	if ledger.served[server] == enough {
		fmt.Println("served", server)
	}
}
