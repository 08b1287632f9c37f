import json, os, sys, time, torch, triton
from headway.engine.gpu.decoder import Llama, Shape
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.prefill import prefill_attention
from headway.engine.gpu.kernels import reference as ref
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction=True
S={"1B":Shape(16,2048,8192,32,8,64,128256,True),"8B":Shape(32,4096,14336,32,8,128,128256,False)}
VLLM={"1B":{1:506,32:11966,128:27850,256:32778},"8B":{1:197,32:5349,128:14709,256:18336}}
PAGE=int(os.environ.get("PAGE","32")); CTX=512
sms=torch.cuda.get_device_properties(0).multi_processor_count
def graph_time(f,n=30):
    s=torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3): f()
    torch.cuda.current_stream().wait_stream(s); torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): f()
    for _ in range(5): g.replay()
    a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
    best=1e9
    for _ in range(3):
        a.record()
        for _ in range(n): g.replay()
        b.record(); torch.cuda.synchronize(); best=min(best,a.elapsed_time(b)/n)
    return best,g
def run(name):
    sh=S[name]; m=Llama(sh,dtype=torch.bfloat16,device="cuda")
    W=2*(sum(x.numel() for l in m.layers for x in (l.qkv,l.out,l.gate_up,l.down))+m.head.numel())
    for B in (1,32,128,256):
        L=CTX+64; per=-(-(CTX+256)//PAGE); NP=B*per+1
        caches=[tuple(torch.randn(NP,sh.key_heads,PAGE,sh.dim,device="cuda",dtype=torch.bfloat16)*.1 for _ in range(2)) for _ in range(sh.layers)]
        tables=(torch.randperm(NP-1,device="cuda")[:B*per].reshape(B,per)+1).int()
        lens=torch.full((B,),L,device="cuda",dtype=torch.int32); last=torch.randint(0,1000,(B,),device="cuda")
        rows=torch.arange(B,device="cuda")
        out={}
        for splits in sorted({1,splits_for(B,sh.key_heads,sms,L),*( (8,16,32) if B==1 else (2,4) if B==32 else ())}):
            def step():
                pos=lens-1
                slots=tables[rows,(pos//PAGE).long()]*PAGE+pos%PAGE
                x=m.hidden(last,pos,slots,caches,lambda q,k,v: decode_attention(q,k,v,tables,lens,sh.dim**-.5,splits=splits))
                last.copy_(m.logits(x).argmax(-1))
            t,_=graph_time(step)
            out[splits]=t
        splits=min(out,key=out.get); t=out[splits]
        P=W/2; kv=B*L*2*sh.layers*sh.key_heads*sh.dim*2; floor=max(W/4.3e12,2*P*B/790e12)+kv/4.3e12
        print(f"{name} B={B} splits {splits} {t:.3f} ms {B/t*1e3:,.0f} tok/s, {B/t*1e3/VLLM[name][B]:.2f}x vLLM, roofline {floor*1e3/t:.0%}; all {({k:round(v,3) for k,v in out.items()})}",flush=True)
        if B in (1,32,256):  # parts
            q=torch.randn(B,sh.heads,sh.dim,device="cuda",dtype=torch.bfloat16)
            for (blk,wp,st) in ((64,4,3),(64,4,2),(128,4,2),(128,8,3),(32,2,4),(64,2,3),(32,4,4)):
                try:
                    def att():
                        for k,v in caches: decode_attention(q,k,v,tables,lens,sh.dim**-.5,splits=splits,block=blk,warps=wp,stages=st)
                    ta,_=graph_time(att); print(f"   attention block {blk} warps {wp} stages {st}: {ta:.3f} ms, {kv/ta/1e9:.2f} TB/s",flush=True)
                except Exception as e: print("   ",blk,wp,st,str(e)[:80])
            h=torch.randn(B,sh.hidden,device="cuda",dtype=torch.bfloat16); i=torch.randn(B,sh.inner,device="cuda",dtype=torch.bfloat16)
            for n,w_,x_ in (("qkv","qkv",h),("out","out",h),("gate_up","gate_up",h),("down","down",i)):
                def mm():
                    for l in m.layers: torch.nn.functional.linear(x_,getattr(l,w_))
                tm,_=graph_time(mm); by=sum(getattr(l,w_).numel()*2 for l in m.layers); print(f"   {n}: {tm:.3f} ms {by/tm/1e9:.2f} TB/s",flush=True)
            def hd(): m.logits(h)
            tm,_=graph_time(hd); print(f"   head: {tm:.3f} ms {m.head.numel()*2/tm/1e9:.2f} TB/s")
        del caches
    # prefill
    per=-(-2048//PAGE)
    for n,ln in ((1,2048),(16,512)):
        T=n*ln; NP=n*per+1
        k=torch.randn(NP,sh.key_heads,PAGE,sh.dim,device="cuda",dtype=torch.bfloat16); v=torch.randn_like(k)
        tables=(torch.randperm(NP-1,device="cuda")[:n*per].reshape(n,per)+1).int()
        starts=(torch.arange(n+1,device="cuda")*ln).int(); lens=torch.full((n,),ln,device="cuda",dtype=torch.int32)
        q=torch.randn(T,sh.heads,sh.dim,device="cuda",dtype=torch.bfloat16)
        want=ref.attention(q,k,v,tables,starts,lens,sh.dim**-.5)
        for (r,blk,wp,st) in ((128,64,8,2),(128,64,4,2),(128,64,8,3),(128,128,8,2),(64,64,4,3),(128,32,4,3)):
            try:
                f=lambda: prefill_attention(q,k,v,tables,starts,lens,sh.dim**-.5,rows=r,block=blk,warps=wp,stages=st)
                e=((f().float()-want.float()).norm()/want.float().norm()).item()
                t=triton.testing.do_bench(f,warmup=5,rep=30); fl=4*n*ln*ln/2*sh.heads*sh.dim
                print(f"   prefill {n}x{ln} rows {r} block {blk} warps {wp} stages {st}: {t:.3f} ms {fl/t/1e9:.0f} TFLOP/s err {e:.1e}",flush=True)
            except Exception as e: print("   prefill",r,blk,wp,st,str(e)[:80])
if __name__=="__main__":
  for n in sys.argv[1:]: run(n); torch.cuda.empty_cache()
