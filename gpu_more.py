import torch, sys, triton, itertools
from headway.engine.gpu.decoder import Llama, Shape
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.adapters import group_rows, add_adapters
from headway.engine.gpu.kernels import eight_bit
from gpu_try import graph_time, S
sms=132; PAGE=32; CTX=512; L=CTX+64
name="8B"; sh=S[name]; m=Llama(sh,dtype=torch.bfloat16,device="cuda")
def state(B):
    per=-(-(CTX+256)//PAGE); NP=B*per+1
    caches=[tuple(torch.randn(NP,sh.key_heads,PAGE,sh.dim,device="cuda",dtype=torch.bfloat16)*.1 for _ in range(2)) for _ in range(sh.layers)]
    tables=(torch.randperm(NP-1,device="cuda")[:B*per].reshape(B,per)+1).int()
    return caches,tables,torch.full((B,),L,device="cuda",dtype=torch.int32),torch.randint(0,1000,(B,),device="cuda"),torch.arange(B,device="cuda",dtype=torch.int32)
widths={"qkv":(6144,4096,(4096,5120,6144)),"out":(4096,4096,(4096,)),"gate_up":(28672,4096,(14336,28672)),"down":(4096,14336,(4096,))}
NA=8; r=16
lora=[{k:(torch.randn(NA,len(e)*r,i,device="cuda",dtype=torch.bfloat16)*.01,torch.randn(NA,w,r,device="cuda",dtype=torch.bfloat16)*.01,e) for k,(w,i,e) in widths.items()} for _ in range(sh.layers)]
for B in (32,128):
    caches,tables,lens,last,slots=state(B); res={}
    ids=(torch.arange(B,device="cuda")%NA).int()
    for with_lora,cfg in ((False,None),(True,(16,128)),(True,(8,128)),(True,(8,256)),(True,(16,256)),(True,(4,128))):
        def step():
            pos=lens-1; places=tables[slots.long(),(pos//PAGE).long()]*PAGE+pos%PAGE
            adapt=None
            if with_lora:
                order,starts=group_rows(ids,NA)
                def adapt(n,which,x,out):
                    d,u,e=lora[n][which]; add_adapters(x,out,d,u,e,order,starts,splits=cfg[0],block=cfg[1])
            x=m.hidden(last,pos,places,caches,lambda q,k,v: decode_attention(q,k,v,tables,slots,lens,sh.dim**-.5,splits=splits_for(B,8,sms,L)),adapt)
            last.copy_(m.logits(x).argmax(-1))
        t,_=graph_time(step); res[(with_lora,cfg)]=t
        print(f"8B B={B} lora {with_lora} {cfg}: {t:.3f} ms {B/t*1e3:,.0f} tok/s {t/res[(False,None)]-1:+.1%}",flush=True)
    del caches
# fp8
import collections
best={}
for M in (1,32,64,128):
    for k,(N,K,_) in widths.items():
        w=[torch.randn(N,K,device="cuda",dtype=torch.bfloat16)*.02 for _ in range(4)]; q=[eight_bit.quantised(x) for x in w]; x=torch.randn(M,K,device="cuda",dtype=torch.bfloat16)
        e=((eight_bit.multiply(x,*q[0]).float()-x.float()@(q[0][0].float()*q[0][1][:,None]).T).norm()/(x.float()@w[0].float().T).norm()).item()
        out=[]
        for c,b,sp,wp,st in ((64,128,1,4,4),(32,128,1,4,4),(32,256,1,4,4),(64,256,1,4,3),(64,128,2,4,4),(32,256,2,4,4),(64,128,4,4,4),(128,128,1,8,4),(32,256,4,4,3),(16,256,1,4,4)):
            if sp>1 and M>64: continue
            try:
                def f():
                    for a,s in q: eight_bit.multiply(x,a,s,columns=c,block=b,splits=sp,warps=wp,stages=st)
                t,_=graph_time(f,10); out.append((t/4,(c,b,sp,wp,st)))
            except Exception as ex: pass
        def g():
            for a in w: torch.nn.functional.linear(x,a)
        t16,_=graph_time(g,10)
        out.sort(); best[M,k]=out[0]
        print(f"fp8 M={M} {k}: {out[0][0]*1e3:.1f} us {N*K/out[0][0]/1e9:.2f} TB/s {out[0][1]}, second {out[1][0]*1e3:.1f} {out[1][1]}; bf16 {t16/4*1e3:.1f} us; err {e:.1e}",flush=True)
        del w,q
m.quantise()
def choose(self,x):
    M=x.shape[0]; N,K=self.weight.shape; k=next(k for k,(n,kk,_) in widths.items() if (n,kk)==(N,K)); b=best.get((M,k))
    c=b[1]; return eight_bit.multiply(x,self.weight,self.scales,columns=c[0],block=c[1],splits=c[2],warps=c[3],stages=c[4])
from headway.engine import llama
llama.EightBit.__call__=choose
for B in (1,32,128):
    caches,tables,lens,last,slots=state(B)
    def step():
        pos=lens-1; places=tables[slots.long(),(pos//PAGE).long()]*PAGE+pos%PAGE
        x=m.hidden(last,pos,places,caches,lambda q,k,v: decode_attention(q,k,v,tables,slots,lens,sh.dim**-.5,splits=splits_for(B,8,sms,L)))
        last.copy_(m.logits(x).argmax(-1))
    t,_=graph_time(step); print(f"8B fp8 weights B={B}: {t:.3f} ms {B/t*1e3:,.0f} tok/s",flush=True)
    del caches
